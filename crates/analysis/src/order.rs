//! Links in the order in which frames pass them.

/// The links, each after all from which frames come to it by one of the steps
/// from link to link. Where these make a cycle, its links and those behind it
/// come last and in no order, and the second value is false.
pub(crate) fn topological(
    links: usize,
    steps: impl Iterator<Item = (usize, usize)>,
) -> (Vec<usize>, bool) {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); links];
    for (from, to) in steps {
        after[from].push(to);
    }
    let mut before = vec![0_usize; links];
    for next in &mut after {
        next.sort_unstable();
        next.dedup();
        for link in next {
            before[*link] += 1;
        }
    }
    let mut order: Vec<usize> = (0..links).filter(|link| before[*link] == 0).collect();
    let mut done = 0;
    while let Some(link) = order.get(done) {
        for next in &after[*link] {
            before[*next] -= 1;
            if before[*next] == 0 {
                order.push(*next);
            }
        }
        done += 1;
    }
    let is_acyclic = order.len() == links;
    order.extend((0..links).filter(|link| before[*link] > 0));
    (order, is_acyclic)
}
