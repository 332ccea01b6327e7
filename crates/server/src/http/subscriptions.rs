//! `GET /api/v1/subscriptions`: who gets what.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use punctual_broker::{ScanPosition, Shard, SubscriptionInfo, SubscriptionView};
use punctual_codec::topic;
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::health::explain;
use super::json::Json;
use super::page::{Key, Page};
use super::query::{Query, check_topic};
use super::shards::STEP;

/// A subscription of a client.
#[derive(Debug, Serialize)]
pub(super) struct Subscription {
    client_id: String,
    /// With `$share/name/`, if it is shared.
    filter: Box<str>,
    qos: u8,
    no_local: bool,
    retain_as_published: bool,
    subscription_id: Option<u32>,
}

impl From<SubscriptionInfo> for Subscription {
    fn from(info: SubscriptionInfo) -> Self {
        Self {
            client_id: info.client_id.as_ref().to_owned(),
            filter: info.filter,
            qos: info.qos,
            no_local: info.no_local,
            retain_as_published: info.retain_as_published,
            subscription_id: Some(info.id).filter(|id| *id != 0),
        }
    }
}

/// A page of subscriptions.
#[derive(Serialize)]
pub(super) struct Subscriptions {
    subscriptions: Vec<Subscription>,
    /// What `after` is for the next page.
    next: Option<String>,
}

/// Which subscriptions are wanted.
#[derive(Debug, Clone)]
struct Wanted {
    filter: Option<String>,
    topic: Option<String>,
}

impl Wanted {
    fn covers(&self, filter: &str) -> bool {
        let (_, plain) = topic::split_share(filter);
        self.filter.as_ref().is_none_or(|wanted| wanted == filter)
            && self
                .topic
                .as_ref()
                .is_none_or(|topic| topic::matches(plain, topic))
    }

    fn add(&self, view: SubscriptionView<'_>, page: &mut Page<SubscriptionInfo>) {
        let (client_id, filter) = (view.client_id(), view.filter());
        if page.wants(client_id, filter) && self.covers(filter) {
            page.add((client_id.clone(), filter.into()), view.info());
        }
    }
}

/// Sorted by client identifier, then filter.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<Subscriptions>, ApiError> {
    let mut query = Query::new(&uri);
    let limit = query.limit()?;
    let after = query
        .take("after")?
        .map(|after| decode(&after))
        .transpose()?;
    let client = query.take("client")?;
    let wanted = Wanted {
        filter: query.filter()?,
        topic: query.take("topic")?,
    };
    query.finish()?;
    if let Some(topic) = &wanted.topic {
        check_topic("topic", topic)?;
    }
    let page = Page::new(after, limit);
    let page = match client {
        Some(client) => {
            let step = move |shard: &Shard, from: usize, page: &mut Page<_>| {
                let add = |view: SubscriptionView<'_>| wanted.add(view, page);
                shard
                    .client(&client)?
                    .scan_subscriptions(from, STEP as usize, add)
            };
            app.shards.list(page, step).await
        }
        None => {
            let step = move |shard: &Shard, from: ScanPosition, page: &mut Page<_>| {
                shard.scan_subscriptions(from, STEP as usize, |view| wanted.add(view, page))
            };
            app.shards.list(page, step).await
        }
    };
    let (subscriptions, next) = page.map_err(|silent| explain(&app, silent))?.finish();
    Ok(Json(Subscriptions {
        subscriptions: subscriptions.into_iter().map(Into::into).collect(),
        next: next.as_ref().map(encode),
    }))
}

/// Neither identifiers nor filters can contain U+0000 [MQTT-1.5.4-2].
fn encode((client_id, filter): &Key) -> String {
    URL_SAFE_NO_PAD.encode(format!("{client_id}\0{filter}"))
}

fn decode(after: &str) -> Result<Key, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(after).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    match text.as_ref().and_then(|text| text.split_once('\0')) {
        Some((client_id, filter)) => Ok((client_id.into(), filter.into())),
        None => Err(ApiError::value(
            "after",
            after,
            "this is not a place in the list of subscriptions",
            "take it from next of the page before",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_the_way_out_and_in() {
        for key in [("a", "b/+"), ("", "x"), ("ü/ä", "$share/g/#")] {
            let key = (key.0.into(), key.1.into());
            assert_eq!(decode(&encode(&key)).unwrap(), key);
        }
        for wrong in ["", "a b", "YQ"] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_conditions_have_to_hold() {
        let wanted = Wanted {
            filter: None,
            topic: Some("a/b".into()),
        };
        for good in ["a/b", "a/+", "#", "$share/g/a/#"] {
            assert!(wanted.covers(good), "{good}");
        }
        assert!(!wanted.covers("a/c"));
        let wanted = Wanted {
            filter: Some("a/+".into()),
            ..wanted
        };
        assert!(wanted.covers("a/+"));
        assert!(!wanted.covers("#"));
    }
}
