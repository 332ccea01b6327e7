//! Networks of the literature, and random ones.

use punctual_model::network::{Document, NetworkError};
use punctual_sim::network::families::{self, Load};
use punctual_sim::network::generate::{self, Shape};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::network::{Network, value_error};

/// Every network of the literature with the name of its file.
#[pyfunction]
pub(crate) fn examples() -> PyResult<Vec<(String, Network)>> {
    let all = families::all().into_iter();
    let all = all.map(|(name, document)| Ok((name, Network::new(document)?)));
    all.collect::<Result<_, NetworkError>>()
        .map_err(value_error)
}

/// Fig. 2 of the RT-MQTT paper.
#[pyfunction]
pub(crate) fn fig2(load: &str) -> PyResult<Network> {
    checked(families::fig2(load_of(load)?))
}

/// Fig. 15 of the MRT-MQTT paper.
#[pyfunction]
pub(crate) fn fig15(load: &str, all_publish: bool) -> PyResult<Network> {
    checked(families::fig15(load_of(load)?, all_publish))
}

/// The factory cell of the PrioMQTT paper.
#[pyfunction]
pub(crate) fn factory_cell() -> PyResult<Network> {
    checked(families::factory_cell())
}

/// Three publishers along a line of two switches.
#[pyfunction]
pub(crate) fn line() -> PyResult<Network> {
    checked(families::line())
}

/// The random network of a seed, of any shape or of one.
#[pyfunction]
pub(crate) fn random(py: Python<'_>, seed: u64, shape: Option<&str>) -> PyResult<Network> {
    let shape = shape
        .map(|name| {
            let shape = Shape::ALL
                .into_iter()
                .find(|shape| shape_name(*shape) == name);
            shape.ok_or_else(|| unknown("shape", name, &Shape::ALL.map(shape_name)))
        })
        .transpose()?;
    checked(py.detach(|| match shape {
        Some(shape) => generate::random_of(shape, seed),
        None => generate::random(seed),
    }))
}

fn checked(document: Document) -> PyResult<Network> {
    Network::new(document).map_err(value_error)
}

fn load_of(name: &str) -> PyResult<Load> {
    let load = Load::ALL.into_iter().find(|load| load.name() == name);
    load.ok_or_else(|| unknown("load", name, &Load::ALL.map(Load::name)))
}

fn shape_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Line => "line",
        Shape::Tree => "tree",
        Shape::Ring => "ring",
        Shape::Mesh => "mesh",
        Shape::Broker => "broker",
    }
}

fn unknown(what: &str, name: &str, known: &[&str]) -> PyErr {
    let known = known.join(", ");
    PyValueError::new_err(format!("{what} {name:?} is unknown; there are {known}"))
}
