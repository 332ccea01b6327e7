//! Locks of what shards share with each other and with their shell.
//!
//! Messages that go where messages of their topic went before take none, but one for each shared
//! subscription. They are counted by thread, so that a test can show it.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How many locks this thread took by the functions of this module.
pub fn taken() -> u64 {
    TAKEN.get()
}

#[inline]
fn count() {
    // While a thread ends there may be no counter any more; nobody asks then.
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
