//! Loads of links in words.

use punctual_analysis::LinkLoad;

/// A load in words, such as `104 %`; one that is barely above 100 % is not
/// rounded to it.
pub(super) fn text(load: &LinkLoad) -> String {
    let percent = load.percent();
    match load.overloaded_from {
        Some(_) => format!("{} %", (percent * 10.0).ceil() / 10.0),
        None => format!("{} %", (percent * 10.0).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overload_is_not_rounded_away() {
        let load = |share, overloaded_from| LinkLoad {
            link: 0,
            share,
            overloaded_from,
            flows: 1,
        };
        let full = LinkLoad::FULL;
        assert_eq!(text(&load(full, None)), "100 %");
        assert_eq!(text(&load(full + full / 1_000_000, Some(3))), "100.1 %");
        assert_eq!(text(&load(full / 3, None)), "33.3 %");
        assert_eq!(text(&load(full * 4, Some(2))), "400 %");
    }
}
