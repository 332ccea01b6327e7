//! The program's code in huge pages.
//!
//! A message runs through some 500 cache lines of code on 50 pages of 4 KiB. Where messages are
//! rare, the processor has to find these pages anew for each, and in a virtual machine that takes
//! a walk through two page tables for each of them: half as long as all that the broker does itself.
//! In pages of 2 MiB the code is on one to three.
//!
//! Most kernels have huge pages for memory of a process, not for files, so the code is copied into
//! such memory, which then takes its place. That costs as much memory as the code is long; it is not
//! shared with other processes of the program; and profilers that find names by file do not know it
//! any more. Sources: madvise(2), mremap(2), the kernel's `admin-guide/mm/transhuge`.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

use crate::footprint::{alone, code_of};

/// Where the kernel says how large a huge page is, and whether there are any.
const SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Why the code stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum NotMoved {
    /// On this machine the kernel gives no huge pages to who asks for them.
    #[error("the kernel has no huge pages for it ({ENABLED} is to be \"madvise\" or \"always\")")]
    Off,
    /// Other processors do not see code that was copied before they are told.
    #[error("it is done on x86-64 only")]
    Processor,
    /// The code does not fill one huge page, or is there already.
    #[error("no huge page is full of code")]
    Small,
    /// The kernel refuses it, be it that nothing that was written may be run.
    #[error("{step}: {error} (a service manager or SELinux may forbid to run what was written)")]
    Refused {
        /// The system call.
        step: &'static str,
        /// What it said.
        error: io::Error,
    },
}

fn refused(step: &'static str) -> impl FnOnce(rustix::io::Errno) -> NotMoved {
    move |error| NotMoved::Refused {
        step,
        error: error.into(),
    }
}

/// Moves the code of this program into huge pages, but for what does not fill one at both ends.
/// Returns how many bytes that are. To be called before there are threads whose time matters: they
/// wait while the pages change places, which they do at once.
///
/// # Errors
/// [`NotMoved`]; then everything is as it was.
pub fn move_code() -> Result<usize, NotMoved> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(NotMoved::Processor);
    }
    let enabled = std::fs::read_to_string(ENABLED).unwrap_or_default();
    let size = std::fs::read_to_string(SIZE).unwrap_or_default();
    let Some(size) = size
        .trim()
        .parse()
        .ok()
        .filter(|size| usize::is_power_of_two(*size))
    else {
        return Err(NotMoved::Off);
    };
    if enabled.is_empty() || enabled.contains("[never]") {
        return Err(NotMoved::Off);
    }
    let _alone = alone();
    let code = code_of(move_code as *const () as usize).ok_or(NotMoved::Small)?;
    let code = whole_pages(&code, size).ok_or(NotMoved::Small)?;
    replace(&code, size)?;
    Ok(code.len())
}

/// The part of `range` that consists of whole pages of that size.
fn whole_pages(range: &Range<usize>, size: usize) -> Option<Range<usize>> {
    let (start, end) = (
        range.start.checked_next_multiple_of(size)?,
        range.end / size * size,
    );
    (start < end).then_some(start..end)
}

/// Memory that is unmapped when it is dropped.
struct Mapping {
    start: *mut c_void,
    len: usize,
}

impl Mapping {
    /// `len` bytes that can be written, from the begin of a page of that size.
    fn new(len: usize, size: usize) -> Result<Self, NotMoved> {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len + size, rw, MapFlags::PRIVATE) }
            .map_err(refused("mmap"))?;
        let before = start.align_offset(size);
        let mapping = Self {
            start: start.wrapping_byte_add(before),
            len,
        };
        // What is not needed of it.
        drop(Self { start, len: before });
        drop(Self {
            start: mapping.start.wrapping_byte_add(len),
            len: size - before,
        });
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody else knows of this memory. That nothing is not unmapped does no harm.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// Puts a copy in huge pages of that size in the place of `code`, which begins and ends between two.
fn replace(code: &Range<usize>, size: usize) -> Result<(), NotMoved> {
    let len = code.len();
    let copy = Mapping::new(len, size)?;
    let place = ptr::with_exposed_provenance_mut::<c_void>(code.start);
    // SAFETY: the copy is as long as the code, which can be read, and nothing writes to it.
    unsafe {
        madvise(copy.start, len, Advice::LinuxHugepage).map_err(refused("madvise"))?;
        ptr::copy_nonoverlapping(place.cast::<u8>(), copy.start.cast::<u8>(), len);
        mprotect(copy.start, len, MprotectFlags::READ | MprotectFlags::EXEC)
            .map_err(refused("mprotect"))?;
    }
    // SAFETY: what is there afterwards is what was there before, byte by byte, and can be read and
    // run as before; nothing unmaps code. The kernel changes the two in one step, for which whoever
    // runs this code waits.
    unsafe { mremap_fixed(copy.start, len, len, MremapFlags::MAYMOVE, place) }
        .map_err(refused("mremap"))?;
    std::mem::forget(copy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_moved() {
        assert_eq!(whole_pages(&(0x1000..0x9000), 0x2000), Some(0x2000..0x8000));
        assert_eq!(whole_pages(&(0x2000..0x4000), 0x2000), Some(0x2000..0x4000));
        assert_eq!(whole_pages(&(0x1000..0x3fff), 0x2000), None);
        assert_eq!(whole_pages(&(0x1000..usize::MAX), 1 << 63), None);
    }

    /// All code of this program, which may be too short for a huge page: it runs on, and unwinds.
    #[test]
    fn a_process_runs_on_with_its_code_elsewhere() {
        const PAGE: usize = 4096;
        let alone = alone();
        let code = code_of(move_code as *const () as usize).unwrap();
        assert_eq!(whole_pages(&code, PAGE), Some(code.clone()));
        replace(&code, PAGE).unwrap();
        drop(alone);
        let sum = |n: u64| (0..n).sum::<u64>();
        assert_eq!(sum(1000), 499_500);
        let panicked = std::panic::catch_unwind(|| assert_eq!(sum(1000), 0));
        assert!(panicked.is_err());
        // It is not a file's any more.
        assert_eq!(code_of(move_code as *const () as usize), None);
        assert!(matches!(
            move_code(),
            Err(NotMoved::Small | NotMoved::Off | NotMoved::Processor)
        ));
    }
}
