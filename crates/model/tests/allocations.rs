//! Requirements are read on the data path and must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use punctual_model::{Requirements, is_requirement_key};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system allocator; the counter is a thread-local without a
// destructor, so that counting neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer comes from `alloc` above, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reading_does_not_allocate() {
    let before = ALLOCATIONS.get();
    let mut requirements = Requirements::default();
    let mut ours = 0;
    for (key, value) in [
        (&b"priority"[..], &b"3"[..]),
        (b"rt-deadline", b"1.5ms"),
        (b"rt-period", b"100"),
        (b"rt-priority", b"7"),
        (b"rt-size", b"100"),
        (b"rt-transmission-time", b"12us"),
        (b"rt-bandwidth", b"2Mbit"),
        (b"rt-jitter", b"10us"),
        (b"rt-late", b"drop"),
        (b"rt-classes", b"0,1"),
        (b"origin", b"gateway"),
    ] {
        if is_requirement_key(key) && requirements.set(key, value) == Ok(true) {
            ours += 1;
        }
    }
    let count = ALLOCATIONS.get() - before;
    assert_eq!(ours, 9, "{requirements:?}");
    assert_eq!(count, 0);
}
