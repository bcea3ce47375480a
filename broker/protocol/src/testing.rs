//! What the tests of this crate share: an allocator that counts, per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    // The counters are gone while a thread ends; nobody measures then.
    let _ended = LIVE.try_with(|live| {
        live.set(live.get() + change);
        if change > 0 {
            PEAK.with(|peak| peak.set(peak.get().max(live.get())));
            CALLS.with(|calls| calls.set(calls.get() + 1));
        }
    });
}

fn size(layout: Layout) -> isize {
    layout.size().cast_signed()
}

#[expect(unsafe_code, reason = "an allocator is unsafe to implement")]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new may exist at the same time.
        count(new_size.cast_signed());
        count(-size(layout));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, new_size) }
    }
}

/// What running something took from the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// Most bytes held at any time, beyond those held before.
    pub(crate) peak: usize,
    /// How many times it asked.
    pub(crate) calls: usize,
}

/// Runs something and tells what it allocated, on this thread.
pub(crate) fn allocated<T>(run: impl FnOnce() -> T) -> (T, Allocated) {
    let live = LIVE.get();
    PEAK.set(live);
    let calls = CALLS.get();
    let result = run();
    let peak = usize::try_from(PEAK.get() - live).unwrap();
    (
        result,
        Allocated {
            peak,
            calls: CALLS.get() - calls,
        },
    )
}

#[test]
fn allocations_are_counted() {
    let (vec, one) = allocated(|| Vec::<u8>::with_capacity(1000));
    assert_eq!(
        one,
        Allocated {
            peak: 1000,
            calls: 1
        }
    );
    drop(vec);
    let (_, none) = allocated(|| 1 + 1);
    assert_eq!(none, Allocated { peak: 0, calls: 0 });
}
