//! Which path leads where, and what it takes: one table, from which the router is made and against
//! which the descriptions are checked.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post};

use super::authorization::{Access, Authorizer, Door, pass};
use super::error::ApiError;
use super::guard::Hosts;
use super::{
    App, alarms, clients, config, flows, guard, health, mesh, metrics, openapi, retained, role,
    stats, store, subscriptions,
};

/// A method of a path, what it takes, and who answers it.
pub(super) struct Route<S> {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the handler has it, too; tests compare")
    )]
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) access: Access,
    handler: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Route<S> {
    pub(super) fn get<T: 'static>(
        path: &'static str,
        access: Access,
        handler: impl Handler<T, S>,
    ) -> Self {
        Self::new(Method::GET, path, access, get(handler))
    }

    fn post<T: 'static>(path: &'static str, access: Access, handler: impl Handler<T, S>) -> Self {
        Self::new(Method::POST, path, access, post(handler))
    }

    fn delete<T: 'static>(path: &'static str, access: Access, handler: impl Handler<T, S>) -> Self {
        Self::new(Method::DELETE, path, access, delete(handler))
    }

    fn new(method: Method, path: &'static str, access: Access, handler: MethodRouter<S>) -> Self {
        Self {
            method,
            path,
            access,
            handler,
        }
    }
}

/// What there is, and what it takes. Whatever shows client identifiers, topics, payloads or the
/// configuration takes `read`; what ends clients and flows or removes messages `operate`; what
/// changes the broker itself, or whom it connects to, `administer`.
#[rustfmt::skip]
pub(super) fn routes() -> Vec<Route<Arc<App>>> {
    vec![
        Route::get("/healthz", Access::Health, health::live),
        Route::get("/readyz", Access::Health, health::ready),
        // Flows have the names of topics and clients: they are for `read` alone.
        Route::get("/metrics", Access::Open, metrics::get),
        Route::get("/api/v1/openapi.json", Access::Open, openapi::get),
        Route::get("/api/v1/role", Access::READ, role::get),
        Route::get("/api/v1/stats", Access::READ, stats::get),
        Route::get("/api/v1/config", Access::READ, config::get),
        Route::get("/api/v1/clients", Access::READ, clients::list),
        Route::get("/api/v1/clients/{id}", Access::READ, clients::get),
        Route::delete("/api/v1/clients/{id}", Access::OPERATE, clients::delete),
        Route::get("/api/v1/subscriptions", Access::READ, subscriptions::list),
        Route::get("/api/v1/retained", Access::READ, retained::list),
        Route::get("/api/v1/retained/{*topic}", Access::READ, retained::get),
        Route::delete("/api/v1/retained/{*topic}", Access::OPERATE, retained::delete),
        Route::get("/api/v1/flows", Access::READ, flows::list),
        Route::post("/api/v1/flows", Access::OPERATE, flows::create),
        Route::get("/api/v1/flows/{*id}", Access::READ, flows::get),
        Route::delete("/api/v1/flows/{*id}", Access::OPERATE, flows::delete),
        Route::get("/api/v1/alarms", Access::READ, alarms::list),
        Route::get("/api/v1/network", Access::READ, flows::network),
        Route::get("/api/v1/store", Access::READ, store::get),
        // It changes nothing.
        Route::post("/api/v1/what-if", Access::READ, flows::what_if),
        Route::get("/api/v1/mesh", Access::READ, mesh::status),
        Route::post("/api/v1/mesh/neighbours", Access::ADMINISTER, mesh::add),
        Route::delete("/api/v1/mesh/neighbours/{address}", Access::ADMINISTER, mesh::remove),
        Route::delete("/api/v1/mesh/away/{broker}", Access::ADMINISTER, mesh::forget),
        Route::get("/api/v1/mesh/trace/{*topic}", Access::READ, mesh::trace),
    ]
}

/// The whole interface.
pub(super) fn router(app: &Arc<App>) -> Router {
    assemble(routes(), &app.authorizer, app.hosts.clone()).with_state(app.clone())
}

/// A router in which every route has its door, and everything passes the guard.
pub(super) fn assemble<S: Clone + Send + Sync + 'static>(
    routes: Vec<Route<S>>,
    authorizer: &Arc<Authorizer>,
    hosts: Arc<Hosts>,
) -> Router<S> {
    let router = routes.into_iter().fold(Router::new(), |router, route| {
        let door = Door {
            authorizer: authorizer.clone(),
            access: route.access,
        };
        let handler = route.handler.route_layer(from_fn_with_state(door, pass));
        router.route(route.path, handler)
    });
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(hosts, guard::guard))
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
    use std::collections::BTreeMap;

    use super::*;

    /// What each method of each path takes.
    type Table = BTreeMap<(String, String), String>;

    fn table() -> Table {
        let all = routes().into_iter().map(|route| {
            let path = route.path.replace("{*", "{");
            let access = route.access.name().to_owned();
            ((path, route.method.to_string()), access)
        });
        all.collect()
    }

    /// Names of flows have slashes, so what comes after one is not a route of its own.
    #[test]
    fn the_description_has_every_method_with_what_it_takes_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(openapi::DOCUMENT).unwrap();
        let mut described = Table::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            let path = path.trim_end_matches("/explain").to_owned();
            for (method, operation) in operations.as_object().unwrap() {
                if method == "parameters" {
                    continue;
                }
                let access = operation["x-access"]
                    .as_str()
                    .unwrap_or("nothing")
                    .to_owned();
                let security = operation.get("security").map(ToString::to_string);
                let open = access == "open";
                assert_eq!(security.as_deref(), open.then_some("[]"), "{path} {method}");
                described.insert((path.clone(), method.to_uppercase()), access);
            }
        }
        assert_eq!(table(), described);
    }

    #[test]
    fn the_documentation_has_the_table() {
        let text = include_str!("../../../../docs/http-api.md");
        let rows = table()
            .into_iter()
            .map(|((path, method), access)| format!("| `{method} {path}` | {access} |"));
        for row in rows {
            assert!(text.contains(&row), "docs/http-api.md lacks: {row}");
        }
    }

    /// What changes something is never for everybody, nor for those who only look.
    #[test]
    fn every_write_takes_more_than_reading() {
        for route in routes() {
            let reads = route.method == Method::GET || route.path == "/api/v1/what-if";
            let least = if reads { Access::Open } else { Access::OPERATE };
            let rank = |access| match access {
                Access::Health | Access::Open => None,
                Access::Role(role) => Some(role),
            };
            assert!(
                rank(route.access) >= rank(least),
                "{} {}",
                route.method,
                route.path
            );
        }
    }
}
