//! The broker in its mesh, and its bridges, in numbers.

use punctual_mesh::tree::Edge;

use super::Exposition;
use super::Kind::{Counter, Gauge};
use crate::bridge::Standings;
use crate::mesh::Overview;

pub(super) fn text(overview: &Overview) -> String {
    let status = &overview.status;
    let mut out = Exposition::default();
    out.one(
        "punctual_mesh_attached",
        Gauge,
        "Whether the broker is attached to the tree of its mesh.",
        u8::from(status.attached),
    );
    out.one(
        "punctual_mesh_root",
        Gauge,
        "Whether the broker is the root.",
        u8::from(status.parent.is_none()),
    );
    out.one(
        "punctual_mesh_cost_seconds",
        Gauge,
        "Cost of the way to the root.",
        status.cost as f64 / 1e6,
    );
    out.one(
        "punctual_mesh_brokers",
        Gauge,
        "Brokers that the tree joins, this one among them.",
        overview.brokers.len(),
    );
    out.family(
        "punctual_mesh_links",
        Gauge,
        "Links to neighbours, by what they are used for.",
    );
    for edge in [Edge::Spare, Edge::Joining, Edge::Parent, Edge::Child] {
        let links = status.links.iter().filter(|link| link.edge == edge);
        out.sample(&[("state", edge.name())], links.count());
    }
    out.family(
        "punctual_mesh_link_rtt_seconds",
        Gauge,
        "Smoothed round-trip time to a neighbour, once it is measured.",
    );
    for link in &status.links {
        if let Some(rtt) = link.rtt {
            let peer = link.peer.to_string();
            out.sample(&[("peer", peer.as_str())], rtt.0 as f64 / 1e9);
        }
    }
    out.family(
        "punctual_mesh_clock_ahead_seconds",
        Gauge,
        "How far the clock of a neighbour is ahead of this broker's.",
    );
    for link in &status.links {
        if let Some(ahead) = link.clock_ahead {
            let peer = link.peer.to_string();
            out.sample(&[("peer", peer.as_str())], ahead as f64 / 1e6);
        }
    }
    out.one(
        "punctual_mesh_clock_is_wrong",
        Gauge,
        "Whether the clock differs from those of most neighbours.",
        u8::from(status.clock_error.is_some()),
    );
    out.one(
        "punctual_mesh_future_claims_total",
        Counter,
        "What neighbours said of clients and was left out, since it is about the future.",
        status.future_claims,
    );
    out.one(
        "punctual_mesh_unconnected",
        Gauge,
        "Addresses of neighbours that lead to none; GET /api/v1/mesh says why.",
        overview.unconnected.len(),
    );
    out.one(
        "punctual_mesh_filters",
        Gauge,
        "Topic filters that somebody in the mesh wants, as known here.",
        status.filters,
    );
    out.one(
        "punctual_mesh_advertisements_total",
        Counter,
        "Changes of topic filters told to neighbours.",
        status.advertised,
    );
    out.finish()
}

/// Of bridges, which need no mesh.
pub(super) fn bridges(bridges: &Standings) -> String {
    let mut out = Exposition::default();
    out.family(
        "punctual_bridge_connected",
        Gauge,
        "Whether a bridge to a broker that is not of the mesh is connected, at both ends.",
    );
    for bridge in bridges.iter() {
        let connected = u8::from(bridge.trouble().is_none());
        out.sample(&[("name", &bridge.name)], connected);
    }
    out.finish()
}
