//! `%j` and `%J`: a message as a JSON object, with mosquitto_sub's names.

use std::fmt::Write as _;

use chrono::{DateTime, Local};
use punctual_client::{Delivery, PropertyId, QoS};
use serde::de::IgnoredAny;

/// The payload was to be taken as JSON and is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotJson;

/// The object. With `raw` the payload stands in it as the JSON that it is,
/// with every digit it has; otherwise as a string, bytes that are not UTF-8
/// replaced by U+FFFD.
pub(super) fn object(
    delivery: &Delivery,
    time: DateTime<Local>,
    raw: bool,
    pretty: bool,
) -> Result<String, NotJson> {
    let message = &delivery.message;
    let mut out = String::from("{");
    let _ = write!(
        out,
        "\"tst\":\"{}\",\"topic\":{},\"qos\":{},\"retain\":{},\"payloadlen\":{}",
        time.format("%Y-%m-%dT%H:%M:%S%.6f%z"),
        string(&message.topic),
        message.qos as u8,
        u8::from(message.retain),
        message.payload.len(),
    );
    if message.qos != QoS::AtMostOnce {
        let _ = write!(out, ",\"mid\":{}", delivery.packet_id);
    }
    if let Some(properties) = properties(delivery) {
        let _ = write!(out, ",\"properties\":{properties}");
    }
    let _ = match raw {
        true => write!(out, ",\"payload\":{}}}", payload_as_json(&message.payload)?),
        false => {
            let text = String::from_utf8_lossy(&message.payload);
            write!(out, ",\"payload\":{}}}", string(&text))
        }
    };
    Ok(match pretty {
        true => relayout(&out, true),
        false => out,
    })
}

/// A JSON string literal.
fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The properties in the order they came in, the user's together where the
/// first of them is; `None` if there are none.
fn properties(delivery: &Delivery) -> Option<String> {
    let properties = delivery.message.properties.as_properties();
    let mut members = Vec::new();
    let mut user_done = false;
    for property in properties.iter() {
        let name = property.id.name().to_ascii_lowercase().replace(' ', "-");
        let value = match property.id {
            PropertyId::UserProperty => {
                if std::mem::replace(&mut user_done, true) {
                    continue;
                }
                let pairs: Vec<String> = properties
                    .user()
                    .map(|(key, value)| format!("{}:{}", string(key), string(value)))
                    .collect();
                members.push(format!("\"user-properties\":{{{}}}", pairs.join(",")));
                continue;
            }
            PropertyId::ContentType | PropertyId::ResponseTopic | PropertyId::CorrelationData => {
                string(&String::from_utf8_lossy(property.data()))
            }
            _ => property.number().to_string(),
        };
        members.push(format!("\"{name}\":{value}"));
    }
    (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
}

fn payload_as_json(payload: &[u8]) -> Result<String, NotJson> {
    let text = std::str::from_utf8(payload).map_err(|_| NotJson)?;
    let _: IgnoredAny = serde_json::from_str(text).map_err(|_| NotJson)?;
    Ok(relayout(text, false))
}

/// Takes the blanks out of valid JSON; puts new ones in if it is to be
/// `pretty`, in the layout mosquitto_sub has.
fn relayout(json: &str, pretty: bool) -> String {
    let mut out = String::with_capacity(json.len());
    let mut depth = 0;
    let mut in_string = false;
    let mut escaped = false;
    let mut rest = json.chars().filter(|c| !c.is_ascii_control()).peekable();
    let line = |out: &mut String, depth: usize| {
        if pretty {
            out.push('\n');
            out.extend(std::iter::repeat_n('\t', depth));
        }
    };
    while let Some(char) = rest.next() {
        if in_string {
            out.push(char);
            in_string = escaped || char != '"';
            escaped = !escaped && char == '\\';
            continue;
        }
        match char {
            ' ' => {}
            '"' => {
                in_string = true;
                out.push(char);
            }
            '{' | '[' => {
                out.push(char);
                while rest.next_if_eq(&' ').is_some() {}
                if let Some(end) = rest.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth -= 1;
                line(&mut out, depth);
                out.push(char);
            }
            ',' => {
                out.push(char);
                line(&mut out, depth);
            }
            ':' => {
                out.push(char);
                if pretty {
                    out.push('\t');
                }
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone as _;
    use punctual_client::Message;
    use std::time::Duration;

    fn with_payload(payload: &[u8]) -> Delivery {
        Delivery {
            message: Message::new("r/1", payload),
            dup: false,
            packet_id: 0,
            received: Duration::ZERO,
        }
    }

    fn time() -> DateTime<Local> {
        Local.timestamp_opt(1_600_000_000, 22_463_001).unwrap()
    }

    fn without_time(object: &str) -> serde_json::Value {
        let mut value: serde_json::Value = serde_json::from_str(object).unwrap();
        let time = value.as_object_mut().unwrap().remove("tst").unwrap();
        assert!(time.as_str().unwrap().contains(".022463"), "{time}");
        value
    }

    #[test]
    fn objects_have_mosquittos_members() {
        let mut delivery = with_payload(b"hel\"lo");
        delivery.message.qos = QoS::AtLeastOnce;
        delivery.packet_id = 1;
        let p = &mut delivery.message.properties;
        p.push_user("k", "v").unwrap();
        p.push_data(PropertyId::ContentType, b"text/plain").unwrap();
        p.push_user("k2", "v2").unwrap();
        p.push_number(PropertyId::MessageExpiryInterval, 100);
        let object = object(&delivery, time(), false, false).unwrap();
        assert_eq!(
            without_time(&object),
            serde_json::json!({
                "topic": "r/1", "qos": 1, "retain": 0, "payloadlen": 6, "mid": 1,
                "properties": {
                    "user-properties": {"k": "v", "k2": "v2"},
                    "content-type": "text/plain",
                    "message-expiry-interval": 100
                },
                "payload": "hel\"lo"
            })
        );
    }

    #[test]
    fn raw_payloads_keep_their_digits_and_lose_their_blanks() {
        let payload = b"{ \"a\" : 1.50,\n \"b c\": [ ], \"d\":\"\\\" {\" }";
        let object = object(&with_payload(payload), time(), true, false).unwrap();
        let expected = r#""payload":{"a":1.50,"b c":[],"d":"\" {"}}"#;
        assert!(object.ends_with(expected), "{object}");
    }

    #[test]
    fn a_payload_that_is_no_json_is_refused() {
        for payload in [&b"hello"[..], b"", b"{", b"\xff", b"1 2"] {
            let result = object(&with_payload(payload), time(), true, false);
            assert_eq!(result, Err(NotJson));
        }
    }

    #[test]
    fn pretty_objects_mean_the_same() {
        let delivery = with_payload(br#"{"a":[1,{}],"s":"x, {y}: z"}"#);
        let plain = object(&delivery, time(), true, false).unwrap();
        let pretty = object(&delivery, time(), true, true).unwrap();
        assert!(pretty.contains("\n\t\"topic\":\t\"r/1\",\n"), "{pretty}");
        let value: serde_json::Value = serde_json::from_str(&pretty).unwrap();
        assert_eq!(
            value,
            serde_json::from_str::<serde_json::Value>(&plain).unwrap()
        );
    }
}
