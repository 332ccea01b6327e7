//! Bytes that are counted in a total for as long as they are kept, so that the total has a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Some bytes of a total; released when dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Reserved {
    /// Counts `bytes`; `None` if the total would be above `max`.
    pub(crate) fn take(total: &Arc<AtomicUsize>, bytes: usize, max: usize) -> Option<Self> {
        let add = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= max);
        total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(Self {
            total: total.clone(),
            bytes,
        })
    }

    /// Counts `bytes` of existing content, whatever the bound.
    pub(crate) fn count(total: &Arc<AtomicUsize>, bytes: usize) -> Self {
        total.fetch_add(bytes, Ordering::Relaxed);
        Self {
            total: total.clone(),
            bytes,
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_makes_room() {
        let total = Arc::default();
        let first = Reserved::take(&total, 60, 100).unwrap();
        assert!(Reserved::take(&total, 41, 100).is_none());
        assert!(Reserved::take(&total, usize::MAX, usize::MAX).is_none());
        let second = Reserved::take(&total, 40, 100).unwrap();
        drop(first);
        assert_eq!(total.load(Ordering::Relaxed), 40);
        let beyond = Reserved::count(&total, 100);
        assert!(Reserved::take(&total, 1, 100).is_none());
        drop((second, beyond));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
