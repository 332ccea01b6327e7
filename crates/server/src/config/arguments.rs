//! Values from the command line, the uppermost layer.

use std::path::PathBuf;

use super::address::ListenAddress;
use super::document::{Content, Node, Table, merge};
use super::keys::Listener;
use super::origin::Origin;
use super::schema::Section;
use super::value::{Scalar, Setting, Unreadable};

/// What the command line says about the configuration.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// Listeners that take the place of the configured ones, if there are any.
    pub listen: Vec<ListenAddress>,
    /// Certificate of those listeners that are encrypted.
    pub certificate: Option<PathBuf>,
    /// Key of the certificate.
    pub key: Option<PathBuf>,
    /// Values of other keys: option, section, key and text.
    pub values: Vec<(&'static str, &'static str, &'static str, String)>,
}

impl Arguments {
    /// Lays the values over those of `table`.
    pub(super) fn lay_over(&self, table: &mut Table) {
        for (option, section, key, text) in &self.values {
            let values = Table::from([(String::from(*key), value(option, text.clone()))]);
            let section = (String::from(*section), node(option, Content::Table(values)));
            merge(table, Table::from([section]));
        }
        if !self.listen.is_empty() {
            let listeners = self.listen.iter().map(|address| self.listener(address));
            let listeners = Content::Tables(listeners.collect());
            table.insert(Listener::NAME.into(), node("--listen", listeners));
        }
    }

    fn listener(&self, address: &ListenAddress) -> Node {
        let mut values = Table::from([("address".into(), value("--listen", address.to_string()))]);
        if address.transport.is_encrypted() {
            for (option, key, path) in [
                ("--certificate", "certificate", &self.certificate),
                ("--key", "key", &self.key),
            ] {
                if let Some(path) = path {
                    let text = path.to_string_lossy().into_owned();
                    values.insert(key.into(), value(option, text));
                }
            }
        }
        node("--listen", Content::Table(values))
    }
}

/// Checks for clap that an argument can be read as `T`, and leaves it as it is.
pub fn readable<T: Setting>(text: &str) -> Result<String, String> {
    match T::read(&Scalar::Untyped(text.into())) {
        Ok(_) => Ok(text.into()),
        Err(Unreadable::Kind) => Err(format!("expected {}", T::expects())),
        Err(Unreadable::Because(reason)) => Err(reason),
    }
}

fn value(option: &'static str, text: String) -> Node {
    node(option, Content::Scalar(Scalar::Untyped(text)))
}

fn node(option: &'static str, content: Content) -> Node {
    Node {
        origin: Origin::Argument(option),
        content,
    }
}
