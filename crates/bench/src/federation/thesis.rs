//! Values from the thesis: total times from its tables 1 to 7, and the bytes that its text gives
//! for figures 41 to 43.

use super::experiment::Locality;
use super::network::System;

/// Rows of a table, `[subscription-table, flooding, root-relay]`, at localities of 100 % and 0 %:
/// seconds from the first publication to the last receipt.
type Times = [[f64; 3]; 2];

const TABLES: [(&str, u32, Times); 6] = [
    ("tree", 50, [[5.632, 6.758, 6.811], [6.78, 7.46, 7.473]]),
    ("star", 50, [[5.131, 5.698, 6.532], [6.607, 6.736, 6.577]]),
    ("line", 50, [[5.267, 6.514, 6.726], [6.801, 8.769, 7.487]]),
    (
        "tree",
        500,
        [[13.274, 17.35, 17.631], [18.311, 18.324, 19.338]],
    ),
    (
        "star",
        500,
        [[13.649, 18.012, 21.59], [16.77, 17.125, 19.9]],
    ),
    (
        "line",
        500,
        [[14.66, 18.905, 24.97], [17.524, 21.463, 29.696]],
    ),
];

/// Table 7, HiveMQ's cluster: publications, and seconds at localities of 100 % and 0 %.
const CLUSTER: [(u32, [f64; 2]); 2] = [(50, [5.021, 5.01]), (500, [13.966, 14.228])];

/// Kilobytes that all brokers sent for 1500 publications, where the text gives them; traffic with
/// clients and of the idle mesh is included.
const KILOBYTES: [(&str, Locality, [Option<f64>; 3]); 4] = [
    (
        "tree",
        Locality::Same,
        [Some(500.0), Some(1000.0), Some(1600.0)],
    ),
    (
        "tree",
        Locality::Apart,
        [Some(800.0), Some(1000.0), Some(1500.0)],
    ),
    ("tree", Locality::All, [Some(1700.0), None, Some(2400.0)]),
    (
        "line",
        Locality::Same,
        [Some(400.0), Some(1050.0), Some(1500.0)],
    ),
];

fn column(system: System) -> Option<usize> {
    match system {
        System::SubscriptionTable => Some(0),
        System::Flooding => Some(1),
        System::RootRelay => Some(2),
        System::MosquittoBridges | System::RabbitmqCluster => None,
    }
}

/// Total time in seconds, and the number of the thesis' table.
pub(super) fn total_time(
    topology: &str,
    publishes: u32,
    system: System,
    locality: Locality,
) -> Option<(usize, f64)> {
    let row = match locality {
        Locality::Same => 0,
        Locality::Apart => 1,
        Locality::All => return None,
    };
    if system == System::RabbitmqCluster {
        let (_, times) = CLUSTER.iter().find(|(n, _)| *n == publishes)?;
        return Some((TABLES.len() + 1, times[row]));
    }
    let column = column(system)?;
    let found = |(name, n, _): &(&str, u32, Times)| *name == topology && *n == publishes;
    let at = TABLES.iter().position(found)?;
    Some((at + 1, TABLES[at].2[row][column]))
}

/// Kilobytes sent by all brokers.
pub(super) fn kilobytes(
    topology: &str,
    publishes: u32,
    system: System,
    locality: Locality,
) -> Option<f64> {
    let column = column(system)?;
    let mut known = KILOBYTES.iter();
    let (_, _, values) = known.find(|(name, l, _)| *name == topology && *l == locality)?;
    (publishes == 1500).then(|| values[column]).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_numbered_as_in_the_thesis() {
        let line = total_time("line", 500, System::RootRelay, Locality::Apart);
        assert_eq!(line, Some((6, 29.696)));
        let star = total_time("star", 50, System::SubscriptionTable, Locality::Same);
        assert_eq!(star, Some((2, 5.131)));
        assert_eq!(
            total_time("tree", 50, System::MosquittoBridges, Locality::Same),
            None
        );
        let cluster = System::RabbitmqCluster;
        assert_eq!(
            total_time("cluster", 500, cluster, Locality::Apart),
            Some((7, 14.228))
        );
        assert_eq!(total_time("cluster", 50, cluster, Locality::All), None);
        assert_eq!(
            kilobytes("tree", 1500, System::Flooding, Locality::All),
            None
        );
    }
}
