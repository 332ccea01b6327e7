//! Responses that were seen, from a simulation or a measurement.

use std::collections::HashMap;

use serde_json::Value;

use crate::cli::Failure;
use crate::cli::input::Input;

/// Names that the largest response may have, the first that is there counts.
const KEYS: [&str; 3] = ["observed_ns", "max_ns", "largest_ns"];

/// The largest response seen for each flow and path, ns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Observed {
    largest: HashMap<(String, usize), u64>,
}

impl Observed {
    /// Reads a file: JSON with a list `results` of `flow`, `path` and
    /// `observed_ns`, or the same as CSV with a head.
    pub(super) fn read(input: &Input) -> Result<Self, Failure> {
        let read = match input.is_json() {
            true => Self::from_json(&input.value()?),
            false => Self::from_csv(input.text()),
        };
        read.map_err(|problem| format!("{}: {problem}", input.place()).into())
    }

    /// What was seen of a flow to a destination.
    pub(super) fn get(&self, flow: &str, path: usize) -> Option<u64> {
        self.largest.get(&(flow.to_owned(), path)).copied()
    }

    /// The larger of what was known and this counts.
    fn add(&mut self, flow: &str, path: usize, response: u64) {
        let largest = self.largest.entry((flow.to_owned(), path)).or_default();
        *largest = response.max(*largest);
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        let list = value.get("results").unwrap_or(value);
        let Value::Array(rows) = list else {
            return Err("results: must be a list of flow, path and observed_ns".into());
        };
        let mut observed = Self::default();
        for (index, row) in rows.iter().enumerate() {
            let wrong = |key: &str, remedy: &str| format!("results[{index}]: {key}: {remedy}");
            let flow = row["flow"]
                .as_str()
                .ok_or_else(|| wrong("flow", "must be a flow's name"))?;
            let path = match &row["path"] {
                Value::Null => 0,
                path => path
                    .as_u64()
                    .and_then(|path| usize::try_from(path).ok())
                    .ok_or_else(|| wrong("path", "must be the number of a path, from 0"))?,
            };
            // A flow that was never seen has none.
            let response = KEYS
                .iter()
                .map(|key| &row[key])
                .find(|value| !value.is_null());
            if let Some(response) = response {
                let response = response
                    .as_u64()
                    .ok_or_else(|| wrong(KEYS[0], "must be a time in whole nanoseconds"))?;
                observed.add(flow, path, response);
            }
        }
        Ok(observed)
    }

    fn from_csv(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate();
        let head: Vec<_> = match lines.next() {
            Some((_, head)) => head.split(',').map(str::trim).collect(),
            None => Vec::new(),
        };
        let column = |name: &str| head.iter().position(|title| *title == name);
        let flow = column("flow").ok_or("the first line must name a column flow")?;
        let path = column("path");
        let response = KEYS
            .iter()
            .find_map(|key| column(key))
            .ok_or("the first line must name a column observed_ns")?;
        let mut observed = Self::default();
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let fields: Vec<_> = line.split(',').map(str::trim).collect();
            let number = |column: usize| {
                let text = fields.get(column).copied().unwrap_or_default();
                text.parse::<u64>().map_err(|_| {
                    format!(
                        "line {}: {}: {text:?} must be a whole number",
                        index + 1,
                        head[column]
                    )
                })
            };
            let name = fields.get(flow).copied().unwrap_or_default();
            let path = path.map_or(Ok(0), number)?;
            let path = usize::try_from(path).unwrap_or(usize::MAX);
            observed.add(name, path, number(response)?);
        }
        Ok(observed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_largest_of_each_path_counts() {
        let json = Observed::from_json(&json!({"results": [
            {"flow": "a", "path": 1, "observed_ns": 5},
            {"flow": "a", "path": 1, "max_ns": 7, "other": true},
            {"flow": "b", "observed_ns": 3},
            {"flow": "c", "path": 0, "observed_ns": null},
        ]}))
        .unwrap();
        assert_eq!(json.get("a", 1), Some(7));
        assert_eq!(json.get("a", 0), None);
        assert_eq!(json.get("b", 0), Some(3));
        assert_eq!(json.get("c", 0), None);
        let csv = "flow, path, observed_ns\na,1,5\na,1,7\n\nb,0,3\n";
        assert_eq!(Observed::from_csv(csv).unwrap(), json);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let wrong = |value: Value| Observed::from_json(&value).unwrap_err();
        assert!(wrong(json!({})).starts_with("results: must be a list"));
        assert!(wrong(json!([{"path": 1}])).starts_with("results[0]: flow"));
        assert!(wrong(json!([{"flow": "a", "path": -1}])).starts_with("results[0]: path"));
        assert!(wrong(json!([{"flow": "a", "max_ns": 0.5}])).contains("whole nanoseconds"));
        let wrong = |text: &str| Observed::from_csv(text).unwrap_err();
        assert!(wrong("").contains("column flow"));
        assert!(wrong("flow,path\n").contains("column observed_ns"));
        assert!(wrong("flow,observed_ns\na,x\n").contains("line 2: observed_ns: \"x\""));
    }
}
