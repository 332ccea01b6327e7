//! Open-loop load generator, floor and scenarios.
