//! How commands show a running program that they may ask it.

use std::path::PathBuf;

use clap::Args;
use punctual_measure::{Api, HttpPlace};

/// The environment variable for `--token-file`.
const VARIABLE: &str = "PUNCTUAL_TOKEN_FILE";

/// What an HTTP interface is shown.
#[derive(Debug, Args)]
pub(super) struct Access {
    /// File with the tokens of the HTTP interface [default: $PUNCTUAL_TOKEN_FILE, otherwise
    /// where a program of this machine says that they are]. Not needed with unix:PATH for root
    /// and the user that runs the broker.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Access {
    /// The interface there.
    pub(super) fn api(&self, place: HttpPlace) -> Api {
        let variable = || std::env::var_os(VARIABLE).filter(|file| !file.is_empty());
        let file = self.token_file.clone();
        Api::new(place, file.or_else(|| variable().map(PathBuf::from)))
    }
}
