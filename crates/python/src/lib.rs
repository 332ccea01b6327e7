//! The compiled part of the Python package `punctual`.
//!
//! Networks, their bounds, admission and simulation, as plain values: what the
//! package shows (`python/punctual`) is made from them there. Work is done
//! without the interpreter's lock, so Python threads run at the same time.
//! Whatever a caller may get wrong is a `ValueError` with the message of the
//! crate that found it. Times are whole nanoseconds.
#![forbid(unsafe_code)]

mod admission;
mod analysis;
mod explain;
mod families;
mod network;
mod simulation;

use pyo3::prelude::*;

/// The compiled part of `punctual`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::admission::Admission;
    #[pymodule_export]
    use crate::analysis::{analyze, printed_holistic, printed_trajectory, tfa};
    #[pymodule_export]
    use crate::explain::explain;
    #[pymodule_export]
    use crate::families::{examples, factory_cell, fig2, fig15, line, random};
    #[pymodule_export]
    use crate::network::Network;
    #[pymodule_export]
    use crate::simulation::{replay, search, simulate};

    use super::*;

    /// Version of the crate, and so of the package.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
