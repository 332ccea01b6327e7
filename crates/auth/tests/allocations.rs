//! Checks of rights are on the data path and must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use punctual_auth::{Acl, topic};

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

/// Allocations of this thread during `work`.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn checks_do_not_allocate() {
    let acl = Acl::parse(
        "user u\ntopic read a/+/c\ntopic write a/#\ntopic deny a/b/d\ntopic $SYS/#\n\
         pattern read %u/%c/#\npattern deny +/+/secret\nrt max-flows=1\n",
    )
    .unwrap();
    let client = acl.for_client(Some("u"), "c");
    let mut granted = 0;
    let count = allocations(|| {
        for topic in [
            "a/b/c",
            "a/b/d",
            "u/c/x",
            "u/c/secret",
            "none",
            "$SYS/broker/uptime",
            "a/é/c/d",
        ] {
            granted +=
                usize::from(client.may_publish(topic)) + usize::from(client.may_receive(topic));
        }
        granted += usize::from(topic::matches("a/+/#", "a/b"));
        granted += usize::from(client.clone().rt_rights().is_some());
    });
    assert_eq!(count, 0);
    assert!(granted > 0);
    assert!(
        allocations(|| drop(acl.for_client(None, "c"))) > 0,
        "the counter works"
    );
}
