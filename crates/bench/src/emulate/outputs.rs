//! Where the experiments of papers write their results.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::compare::document;
use crate::results_file::{ResultsFile, replace};
use punctual_measure::Result;
use punctual_report::Page;

/// Options for the files that an experiment writes.
#[derive(Args, Debug)]
pub(super) struct OutputArgs {
    /// Markdown file whose generated part is replaced
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// HTML file for the results with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// JSON file for all results, written whenever a part of the experiment has finished [default:
    /// target/bench/EXPERIMENT.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl OutputArgs {
    /// The file for all results, by default `target/bench/EXPERIMENT.json`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn results_file(&self, experiment: &str) -> Result<ResultsFile> {
        let name = format!("{experiment}.json");
        ResultsFile::new(self.json.as_deref(), Path::new("target/bench"), &name)
    }

    /// Writes a page to `out`, and to the document and the HTML file that were asked for.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(&self, page: &Page, out: &mut dyn Write) -> Result<()> {
        document::publish(self.document.as_deref(), &page.markdown(), out)?;
        let html = self.html.as_deref();
        html.map_or(Ok(()), |path| replace(path, &page.html()))
    }
}
