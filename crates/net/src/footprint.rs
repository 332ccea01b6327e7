//! Memory that only starting has needed.
//!
//! Reading the command line and the configuration runs through megabytes of
//! code that a serving broker never runs again, and the system maps sixteen
//! pages around each that is touched. These pages belong to files: giving them
//! back costs nothing, and what is run again is mapped again out of the page
//! cache. Source: madvise(2), proc_pid_maps(5).

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whoever changes how code is mapped does it alone: what is given back has to be a file's still.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static MAPPED: Mutex<()> = Mutex::new(());
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives back the code that is mapped. To be called once everything has
/// started. Locked memory stays (`--realtime`); where there is no `/proc`
/// nothing happens.
pub fn release_code() {
    let _alone = alone();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for range in maps.lines().filter_map(code) {
        // SAFETY: the range is a mapping of this process that is backed by a
        // file and cannot be written to, so its pages have nothing that the
        // file has not, and come back when they are touched. Nothing unmaps
        // code here: no library is closed.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(range.start),
                range.len(),
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// The addresses of the mapping of a file's code in which `address` is.
pub(crate) fn code_of(address: usize) -> Option<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut codes = maps.lines().filter_map(code);
    codes.find(|range| range.contains(&address))
}

/// The addresses of a mapping that is code of a file and nothing else.
fn code(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (mode, inode) = (fields.next()?, fields.nth(2)?);
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    (mode == "r-xp" && inode != "0").then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_given_back() {
        let path = "fd:00 1234      /usr/bin/punctual";
        let line = format!("5581e000-5581f000 r-xp 00001000 {path}");
        assert_eq!(code(&line), Some(0x5581_e000..0x5581_f000));
        for mode in ["r--p", "rw-p", "rwxp", "r-xs"] {
            assert_eq!(code(&format!("1000-2000 {mode} 00001000 {path}")), None);
        }
        let special = "7ffc1000-7ffc3000 r-xp 00000000 00:00 0   [vdso]";
        assert_eq!(code(special), None);
        assert_eq!(code(""), None);
    }

    #[test]
    fn a_process_runs_on_without_its_code() {
        let sum = |n: u64| (0..n).sum::<u64>();
        assert_eq!(sum(1000), 499_500);
        release_code();
        assert_eq!(sum(1000), 499_500);
    }
}
