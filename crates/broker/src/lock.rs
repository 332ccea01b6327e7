//! Locks of the state that shards share with each other and with their shell.
//!
//! A message whose topic was routed before takes no lock, except one for each shared subscription.
//! Locks are counted by thread, so that a test can verify this.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Number of locks that this thread took by the functions of this module.
pub fn taken() -> u64 {
    TAKEN.get()
}

#[inline]
fn count() {
    // While a thread ends the counter may be gone, and is not needed.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// A panic while a lock is held cannot leave these structures inconsistent in a
// way that is worse than not answering at all, so poisoning is ignored.

/// Locks, also if a thread panicked while it held the lock.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    count();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, also if a thread panicked while it held the lock.
#[inline]
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    count();
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, also if a thread panicked while it held the lock.
#[inline]
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    count();
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
