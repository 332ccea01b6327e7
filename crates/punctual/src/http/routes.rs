//! Which path leads where: one table, from which the router is made and against
//! which the description is checked.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use super::error::ApiError;
use super::{
    App, alarms, clients, config, flows, guard, health, mesh, metrics, openapi, retained, stats,
    store, subscriptions,
};

type Route = (&'static str, MethodRouter<Arc<App>>);

fn routes() -> Vec<Route> {
    vec![
        ("/healthz", get(health::live)),
        ("/readyz", get(health::ready)),
        ("/metrics", get(metrics::get)),
        ("/api/v1/openapi.json", get(openapi::get)),
        ("/api/v1/stats", get(stats::get)),
        ("/api/v1/config", get(config::get)),
        ("/api/v1/clients", get(clients::list)),
        (
            "/api/v1/clients/{id}",
            get(clients::get).delete(clients::delete),
        ),
        ("/api/v1/subscriptions", get(subscriptions::list)),
        ("/api/v1/retained", get(retained::list)),
        (
            "/api/v1/retained/{*topic}",
            get(retained::get).delete(retained::delete),
        ),
        ("/api/v1/flows", get(flows::list).post(flows::create)),
        ("/api/v1/flows/{*id}", get(flows::get).delete(flows::delete)),
        ("/api/v1/alarms", get(alarms::list)),
        ("/api/v1/network", get(flows::network)),
        ("/api/v1/store", get(store::get)),
        ("/api/v1/what-if", post(flows::what_if)),
        ("/api/v1/mesh", get(mesh::status)),
        ("/api/v1/mesh/neighbours", post(mesh::add)),
        (
            "/api/v1/mesh/neighbours/{address}",
            axum::routing::delete(mesh::remove),
        ),
        (
            "/api/v1/mesh/away/{broker}",
            axum::routing::delete(mesh::forget),
        ),
        ("/api/v1/mesh/trace/{*topic}", get(mesh::trace)),
    ]
}

/// The whole interface.
pub(super) fn router(app: &Arc<App>) -> Router {
    let routes = routes().into_iter();
    let router = routes.fold(Router::new(), |router, (path, handler)| {
        router.route(path, handler)
    });
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(app.hosts.clone(), guard::guard))
        .with_state(app.clone())
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::not_found(
        "path",
        uri.path(),
        "there is nothing at this path",
        "GET /api/v1/openapi.json says what there is",
    )
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} cannot be done to this path"),
        "GET /api/v1/openapi.json says what can",
    )
    .about("path", uri.path())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// That the methods agree is tested on the running broker. Names of flows have
    /// slashes, so what comes after one is not a route of its own.
    #[test]
    fn the_description_has_every_path_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(openapi::DOCUMENT).unwrap();
        let described: BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .keys()
            .map(|path| path.trim_end_matches("/explain").to_owned())
            .collect();
        let paths = routes()
            .into_iter()
            .map(|(path, _)| path.replace("{*", "{"));
        assert_eq!(paths.collect::<BTreeSet<_>>(), described);
    }
}
