//! Where clients are in the network, as a list of texts.

use punctual_manager::PlaceRule;

use super::value::Listed;

impl Listed for PlaceRule {
    const EXPECTS: &'static str =
        "a list of places such as [\"client press-*: h1\", \"address 10.0.1.0/24: h3\"]";
}
