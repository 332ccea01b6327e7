//! Where clients are in the network, as a list of texts.

use punctual_manager::PlaceRule;

use super::value::{Scalar, Setting, Unreadable, quote_all};

impl Setting for Vec<PlaceRule> {
    fn expects() -> String {
        "a list of places such as [\"client press-*: h1\", \"address 10.0.1.0/24: h3\"]".into()
    }

    /// The environment separates places by semicolons.
    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        let texts = match scalar {
            Scalar::List(items) => items.clone(),
            Scalar::Untyped(text) => text.split(';').map(|item| item.trim().into()).collect(),
            _ => return Err(Unreadable::Kind),
        };
        let place = |text: &String| {
            let wrong = |why: String| Unreadable::Because(format!("{text:?}: {why}"));
            text.parse().map_err(wrong)
        };
        texts.iter().map(place).collect()
    }

    fn show(&self) -> Option<String> {
        let texts: Vec<String> = self.iter().map(PlaceRule::to_string).collect();
        Some(quote_all(&texts))
    }
}
