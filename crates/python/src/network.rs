//! A network as Python sees it: what was written, and the same checked.
//!
//! A `Network` never changes. Dictionaries go through JSON, so a dictionary
//! means what the same JSON means to every other tool.

use punctual_model::network::{self as model, Document, FlowEntry, NetworkError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict as _, PyDict};

/// An error of a library as Python's.
pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A network: nodes, directed links and the flows that cross them. It is
/// checked when it is made and never changes; nodes, links and flows are those
/// of the file format (examples/networks). Times are in ns, rates in bit/s.
#[pyclass(frozen, eq, module = "punctual")]
#[derive(Debug, PartialEq)]
pub(crate) struct Network {
    pub(crate) document: Document,
    pub(crate) checked: model::Network,
}

impl Network {
    pub(crate) fn new(document: Document) -> Result<Self, NetworkError> {
        let checked = model::Network::new(&document)?;
        Ok(Self { document, checked })
    }

    /// The index of a flow, and that it has the path.
    pub(crate) fn path(&self, flow: &str, path: usize) -> PyResult<usize> {
        let flows = &self.checked.flows;
        let Some(index) = flows.iter().position(|known| known.id == flow) else {
            let problem = format!("flow {flow:?} is not in the network; see Network.flow_ids");
            return Err(PyValueError::new_err(problem));
        };
        let paths = flows[index].leaves.len();
        if path >= paths {
            let problem = format!(
                "flow {flow:?} has no path {path}; they are 0 to {}",
                paths - 1
            );
            return Err(PyValueError::new_err(problem));
        }
        Ok(index)
    }
}

#[pymethods]
impl Network {
    /// Reads JSON; keys that are not known are ignored.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| Self::new(Document::from_json(text)?))
            .map_err(value_error)
    }

    /// Reads TOML; keys that are not known are errors.
    #[staticmethod]
    fn from_toml(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| Self::new(Document::from_toml(text)?))
            .map_err(value_error)
    }

    /// Takes a dictionary with lists `nodes`, `links` and `flows`, as in JSON.
    #[staticmethod]
    fn from_dict(py: Python<'_>, document: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::from_json(py, &to_json(document)?)
    }

    /// Names of the flows, in their order.
    #[getter]
    fn flow_ids(&self) -> Vec<&str> {
        let flows = self.document.flows.iter();
        flows.map(|flow| flow.id.as_str()).collect()
    }

    /// The network in JSON, with the names for machines.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.document).map_err(value_error)
    }

    /// The network in TOML, a node, link or flow a line, with units.
    fn to_toml(&self) -> String {
        punctual_sim::network::to_toml(&self.document)
    }

    /// The network as a dictionary, with the names for machines.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &self.to_json()?)
    }

    /// So that it can be pickled, and sent to other processes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let read = py.get_type::<Self>().getattr("from_json")?;
        Ok((read, (self.to_json()?,)))
    }

    fn __repr__(&self) -> String {
        let Document {
            nodes,
            links,
            flows,
        } = &self.document;
        let (nodes, links, flows) = (nodes.len(), links.len(), flows.len());
        format!("<Network: {nodes} nodes, {links} links, {flows} flows>")
    }
}

/// A flow from a dictionary.
pub(crate) fn flow_entry(flow: &Bound<'_, PyAny>) -> PyResult<FlowEntry> {
    let value = serde_json::from_str(&to_json(flow)?).map_err(value_error)?;
    FlowEntry::from_json_value(value).map_err(value_error)
}

/// A Python value as JSON; what JSON does not have is a `TypeError` or
/// `ValueError` of Python's own.
pub(crate) fn to_json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = value.py();
    let strict = [("allow_nan", false)].into_py_dict(py)?;
    py.import("json")?
        .call_method("dumps", (value,), Some(&strict))?
        .extract()
}

/// JSON as a Python value.
pub(crate) fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let none: Option<&Bound<'py, PyDict>> = None;
    py.import("json")?.call_method("loads", (text,), none)
}
