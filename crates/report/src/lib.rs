//! Reports that need nothing else: no script, no font, no address.
//!
//! A [`Page`] is a list of headings, paragraphs, tables and charts; it is
//! written as Markdown (the charts left out) or as one HTML file. Charts
//! ([`cumulative`], [`bars`], [`lines`], [`map`]) are SVG whose colours follow the
//! reader's light or dark theme; [`document`] puts them into one SVG file.
#![forbid(unsafe_code)]

mod bars;
mod chart;
mod curves;
mod lines;
mod map;
mod page;

pub use bars::{Bars, Group, Unit, bars};
pub use chart::{Chart, document};
pub use curves::{Cumulative, Panel, cumulative};
pub use lines::{Line, Lines, lines};
pub use map::{Edge, map};
pub use page::{Page, Part, Table};
