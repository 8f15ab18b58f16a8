//! Pages that a mapped file has lost.
//!
//! A task has its worker's spool in reach, and may cut the file short or punch holes into it. Whoever touches a page of a mapping that has
//! no file behind it any more gets SIGBUS, which would end the head. So the head has a handler that puts a page of zeroes there instead: the claims
//! on it are then neither granted nor claimed nor revoked, which whoever reads them takes for damage. The normal path costs nothing.

use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Mappings that are rescued at a time: more than a head has workers, which have two each.
const PLACES: usize = 8192;
const PAGE: usize = 4096;

/// A mapping, by its first byte and its length. The length is 0 while the place is free or being filled.
struct MappingEntry {
    base: AtomicUsize,
    length: AtomicUsize,
}

static MAPPINGS: [MappingEntry; PLACES] =
    [const { MappingEntry { base: AtomicUsize::new(0), length: AtomicUsize::new(0) } }; PLACES];
/// Handler that the signal had before, for those that are of something else.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// A mapping whose lost pages are replaced, for as long as this lives. It is dropped before the mapping goes.
#[derive(Debug)]
pub(crate) struct Rescue {
    place: usize,
}

impl Rescue {
    /// Replaces lost pages of a mapping from now on. None when too many are rescued already.
    pub(crate) fn new(base: NonNull<u8>, length: usize) -> Option<Rescue> {
        if cfg!(miri) {
            return None;
        }
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let base = base.addr().get();
        // A base that is taken is not 0.
        let place = MAPPINGS.iter().position(|place| place.base.compare_exchange(0, base, AcqRel, Relaxed).is_ok())?;
        MAPPINGS[place].length.store(length, Release);
        Some(Rescue { place })
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        MAPPINGS[self.place].length.store(0, Release);
        MAPPINGS[self.place].base.store(0, Release);
    }
}

fn install() {
    // SAFETY: the action is plain memory that is filled in before it is used, and the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_lost_page;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&mut action.sa_mask);
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, &action, &mut before) == 0 && before.sa_flags & libc::SA_SIGINFO != 0 {
            BEFORE.store(before.sa_sigaction, Release);
        }
    }
}

/// Puts a page of zeroes where the file has lost one. It calls nothing but the kernel.
extern "C" fn on_lost_page(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler that is installed with SA_SIGINFO a valid pointer.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_rescued = MAPPINGS.iter().any(|place| {
        let length = place.length.load(Acquire);
        length > 0 && address.checked_sub(place.base.load(Acquire)).is_some_and(|offset| offset < length)
    });
    // SAFETY: the kernel keeps errno for each thread, and the interrupted code gets back what it had.
    let errno = unsafe { *libc::__errno_location() };
    if is_rescued {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let page = std::ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
        // SAFETY: the page is one of a mapping of this process that is not unmapped before it is taken out of the list.
        let made = unsafe { libc::mmap(page, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if made != libc::MAP_FAILED {
            return;
        }
    }
    let before = BEFORE.load(Acquire);
    if before > 1 {
        // SAFETY: it was installed with SA_SIGINFO, so it is a function of this type.
        let before: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(before) };
        return before(signal, info, context);
    }
    // SAFETY: with the default action, the access that is tried again ends the process.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::super::layout::Mapping;

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeroes_and_ends_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let mut mapping = Mapping::create(&path, 64).unwrap();
        mapping.rescue();
        mapping.claims().0[7].store(70, Relaxed);
        assert!(mapping.header().pid.load(Relaxed) == 0 && mapping.slots_backed() > 0);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!(mapping.claims().0[7].load(Relaxed), 0);
        assert_eq!(mapping.slots_backed(), 0);
        mapping.claims().0[7].store(71, Relaxed);
        assert_eq!(mapping.claims().0[7].load(Relaxed), 71, "the page is this process's own");
    }
}
