//! The query of a request: typed, and without keys that nobody reads.
//!
//! Decoded as HTML forms are (`+` is a space), except that a whole topic level
//! `+` stays what it is, because everybody types `filter=a/+/b`.

use std::ops::RangeInclusive;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use punctual_codec::topic;

use super::error::ApiError;

/// Entries of a page unless `limit` says otherwise, and at most.
const DEFAULT_LIMIT: usize = 100;
const LIMITS: RangeInclusive<usize> = 1..=1000;

/// The parameters that have not been taken yet.
pub(super) struct Query {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Query {
    pub(super) fn new(uri: &Uri) -> Self {
        let raw = uri.query().unwrap_or_default();
        let pairs = raw.split('&').map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let levels = value.split('/');
            let levels = levels.map(|level| if level == "+" { "%2B" } else { level });
            format!("{name}={}", levels.collect::<Vec<_>>().join("/"))
        });
        let pairs = pairs.collect::<Vec<_>>().join("&");
        Self {
            pairs: form_urlencoded::parse(pairs.as_bytes())
                .into_owned()
                .filter(|(name, _)| !name.is_empty())
                .collect(),
            known: Vec::new(),
        }
    }

    /// Takes a parameter that is there at most once.
    pub(super) fn take(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.known.push(name);
        let Some(at) = self.pairs.iter().position(|(key, _)| key == name) else {
            return Ok(None);
        };
        let (_, value) = self.pairs.remove(at);
        match self.pairs.iter().find(|(key, _)| key == name) {
            None => Ok(Some(value)),
            Some((_, second)) => Err(ApiError::value(
                name,
                second,
                format!("the parameter {name} is there twice"),
                "leave one of them out",
            )),
        }
    }

    /// How many entries a page is to have.
    pub(super) fn limit(&mut self) -> Result<usize, ApiError> {
        let Some(text) = self.take("limit")? else {
            return Ok(DEFAULT_LIMIT);
        };
        let limit = text.parse().ok().filter(|limit| LIMITS.contains(limit));
        limit.ok_or_else(|| {
            let (low, high) = LIMITS.into_inner();
            ApiError::value(
                "limit",
                &text,
                format!("limit is a number from {low} to {high}"),
                format!("ask for at most {high}, and for the rest with after"),
            )
        })
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let Some(text) = self.take(name)? else {
            return Ok(None);
        };
        match text.as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(ApiError::value(
                name,
                &text,
                format!("{name} is true or false"),
                format!("write {name}=true or {name}=false"),
            )),
        }
    }

    /// Takes a topic filter.
    pub(super) fn filter(&mut self) -> Result<Option<String>, ApiError> {
        let Some(filter) = self.take("filter")? else {
            return Ok(None);
        };
        match topic::validate_filter(&filter) {
            Ok(()) => Ok(Some(filter)),
            Err(_) => Err(ApiError::value(
                "filter",
                &filter,
                "this is not a topic filter",
                "write whole levels + and, at the end, #; encode other characters + as %2B, \
                 # as %23 and spaces as %20",
            )),
        }
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        let Some((name, value)) = self.pairs.first() else {
            return Ok(());
        };
        let remedy = if self.known.is_empty() {
            "ask without parameters".to_owned()
        } else {
            format!("the parameters are {}", self.known.join(", "))
        };
        Err(ApiError::value(
            name,
            value,
            format!("there is no parameter {name}"),
            remedy,
        ))
    }
}

/// Checks a topic name.
pub(super) fn check_topic(field: &str, name: &str) -> Result<(), ApiError> {
    match topic::validate_name(name.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err(ApiError::value(
            field,
            name,
            "this is not a topic name",
            "name one topic, without + and #",
        )),
    }
}

/// The last part of a path, decoded.
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(error) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the path cannot be read: {error}"),
                "encode names as UTF-8, and / in client identifiers as %2F",
            )
            .about("path", parts.uri.path())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::new(&format!("/x?{text}").parse().unwrap())
    }

    #[test]
    fn decodes_what_people_and_programs_write() {
        for (raw, filter) in [
            ("a/+/b", "a/+/b"),
            ("+/+", "+/+"),
            ("+", "+"),
            ("a%2F%2B%2Fb", "a/+/b"),
            ("a+b/c%20d", "a b/c d"),
            ("%24SYS/%23", "$SYS/#"),
            ("%C3%BCber", "über"),
        ] {
            let mut query = query(&format!("filter={raw}"));
            assert_eq!(query.filter().unwrap().as_deref(), Some(filter), "{raw}");
            assert!(query.finish().is_ok());
        }
        for raw in ["a%2B", "%23/a", "", "%24share/g"] {
            assert!(query(&format!("filter={raw}")).filter().is_err(), "{raw}");
        }
    }

    #[test]
    fn refuses_what_it_does_not_understand() {
        assert_eq!(query("").limit().unwrap(), DEFAULT_LIMIT);
        assert_eq!(query("limit=1000").limit().unwrap(), 1000);
        for raw in [
            "limit=0",
            "limit=1001",
            "limit=",
            "limit=-1",
            "limit=1&limit=1",
        ] {
            assert!(query(raw).limit().is_err(), "{raw}");
        }
        assert_eq!(query("on=true").flag("on").unwrap(), Some(true));
        assert!(query("on=yes").flag("on").is_err());
        let mut other = query("limit=5&limits=5");
        assert_eq!(other.limit().unwrap(), 5);
        assert!(other.finish().is_err());
        assert!(query("&&").finish().is_ok());
    }
}
