//! Images: for rows that not every reader sees, the version they were born in and the row they replaced.
//!
//! Rows with a single image that every reader sees have no entry and no cost here. Readers probe without a
//! lock. The holder of the part's lock writes under the head of the key's line, which shows readers whether
//! the entries they read are consistent.

use std::sync::atomic::Ordering;

use crate::storage::sync::{AtomicU64, is_given, is_taken};

/// Flags an image in which the key is gone. Its row is not read.
pub const GONE: u32 = 1 << 31;
/// The id that means no image.
pub const NONE: u32 = 0;

/// The row of an image id.
#[inline(always)]
pub fn row_of(id: u32) -> u32 {
    id & !GONE
}

const EMPTY: u64 = 0;
/// A removed entry; probes continue past it. Row 0 is never used, so no entry equals this.
const REMOVED: u64 = 1;
const PLACES_MIN: usize = if cfg!(feature = "model") { 8 } else { 16 };
/// Places per page of memory.
const PAGE_PLACES: usize = 4096 / size_of::<[u64; 2]>();

/// The record of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Its birth, the number of the version that was open.
    pub birth: u64,
    /// The id of the image that it replaced, or NONE.
    pub older: u32,
    /// Whether that image had an entry when it was replaced. An image without one never gets one, so no
    /// lookup is needed.
    pub older_is_entered: bool,
}

impl Image {
    /// The image of a key that had none before.
    pub fn first(birth: u64) -> Self {
        Self { birth, older: NONE, older_is_entered: false }
    }
}

/// A flag in an entry's second word: the older image has an entry too.
const OLDER_IS_ENTERED: u64 = 1 << 63;

/// An entry: the row and the older image in one word, the birth in the other.
#[repr(align(16))]
struct ImagePlace([AtomicU64; 2]);

/// The table of entries, whose size is a power of two. Address and size share one word, so that readers load
/// once.
#[derive(Clone, Copy)]
struct ImagePlaces<'a>(&'a [ImagePlace]);

impl<'a> ImagePlaces<'a> {
    #[inline(always)]
    fn first(self, row: u32) -> usize {
        if cfg!(feature = "model") {
            // In the model check every entry takes the place of a removed one.
            return 0;
        }
        // Rows are taken in order, so four of them share a cache line. The upper bits of the product depend
        // on every bit of the factor.
        let mixed = u64::from(row >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((mixed << 2) as usize | row as usize & 3) & (self.0.len() - 1)
    }

    #[inline(always)]
    fn find(self, row: u32) -> Option<(&'a ImagePlace, u64)> {
        let mut index = self.first(row);
        loop {
            let word = self.0[index].0[0].load(Ordering::Acquire);
            if (word >> 32) as u32 == row {
                return Some((&self.0[index], word));
            }
            if word == EMPTY {
                return None;
            }
            index = (index + 1) & (self.0.len() - 1);
        }
    }

    /// Adds a missing entry. Returns whether it took an empty place.
    fn put(self, row: u32, image: Image) -> bool {
        let mut index = self.first(row);
        loop {
            let word = self.0[index].0[0].load(Ordering::Relaxed);
            if word <= REMOVED {
                self.0[index].set(row, image);
                return word == EMPTY;
            }
            index = (index + 1) & (self.0.len() - 1);
        }
    }
}

impl ImagePlace {
    #[inline(always)]
    fn set(&self, row: u32, image: Image) {
        let entered = if image.older_is_entered { OLDER_IS_ENTERED } else { 0 };
        // A reader that takes this for the birth of a removed entry's image must find that image's line
        // changed.
        self.0[1].store(image.birth | entered, Ordering::Release);
        self.0[0].store(u64::from(row) << 32 | u64::from(image.older), Ordering::Release);
    }

    #[inline(always)]
    fn image(&self, word: u64) -> Image {
        let birth = self.0[1].load(Ordering::Relaxed);
        let (birth, older_is_entered) = (birth & !OLDER_IS_ENTERED, birth & OLDER_IS_ENTERED != 0);
        Image { birth, older: word as u32, older_is_entered }
    }
}

/// Old places that readers may still probe; drop it after their grace period.
pub struct OldPlaces(Box<[ImagePlace]>);

impl Drop for OldPlaces {
    fn drop(&mut self) {
        is_given(self.0.as_ptr().cast(), size_of_val(&*self.0));
    }
}

/// The images of one part.
#[derive(Default)]
pub struct Images {
    /// The address of the places and the binary logarithm of their count; 0 if there are none.
    word: AtomicU64,
    /// The latest birth in the part: a reader that sees this birth sees the newest image of everything.
    latest: AtomicU64,
}

/// The bits of the word that the address does not need.
const HALVINGS_BITS: u32 = 8;

/// The state of the images that only the holder of the part's lock knows.
#[derive(Default)]
pub struct ImagesUse {
    entries: usize,
    used: usize,
}

impl ImagesUse {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.entries
    }
}

impl Images {
    #[inline(always)]
    fn places(&self) -> Option<ImagePlaces<'_>> {
        let word = self.word.load(Ordering::Acquire);
        if word == 0 {
            return None;
        }
        let (begin, halvings) =
            ((word >> HALVINGS_BITS) as *const ImagePlace, word & ((1 << HALVINGS_BITS) - 1));
        // SAFETY: places stay for a grace period after they were replaced, and the caller is within one or
        // holds the part's lock.
        Some(ImagePlaces(unsafe { std::slice::from_raw_parts(begin, 1 << halvings) }))
    }

    /// Whether a reader that sees `upto` sees the newest image of everything here. Call it after reading the
    /// image's id.
    #[inline(always)]
    pub fn are_seen(&self, upto: u64) -> bool {
        self.latest.load(Ordering::Acquire) <= upto
    }

    /// Announces a birth in this part, before anything leads to the image.
    #[inline(always)]
    pub fn expect(&self, birth: u64) {
        self.latest.store(birth, Ordering::Release);
    }

    /// The address where the lookup of an image's entry starts, for prefetching.
    #[inline(always)]
    pub fn address(&self, row: u32) -> *const u8 {
        self.places()
            .map_or(std::ptr::null(), |places| std::ptr::from_ref(&places.0[places.first(row)]).cast())
    }

    /// The record of an image; None if every reader sees it.
    #[inline(always)]
    pub fn get(&self, row: u32) -> Option<Image> {
        let (place, word) = self.places()?.find(row)?;
        Some(place.image(word))
    }

    /// The newest image born at or before `upto`, going back from `id`; NONE if there is none.
    #[inline(always)]
    pub fn seen(&self, mut id: u32, upto: u64) -> u32 {
        while let Some(image) = self.get(row_of(id)).filter(|image| image.birth > upto) {
            id = image.older;
            if !image.older_is_entered {
                break;
            }
        }
        id
    }

    /// Adds an image. Returns memory that must wait for readers to pass.
    pub fn insert(&self, state: &mut ImagesUse, row: u32, image: Image) -> Option<OldPlaces> {
        debug_assert!(row != 0 && row & GONE == 0 && self.get(row).is_none());
        let replaced = self.reserve(state, 1);
        let places = self.places().expect("rebuild made them");
        state.used += usize::from(places.put(row, image));
        state.entries += 1;
        replaced
    }

    /// Makes room for `more` images. Returns memory that must wait for readers to pass.
    #[inline(always)]
    pub fn reserve(&self, state: &mut ImagesUse, more: usize) -> Option<OldPlaces> {
        let capacity = self.places().map_or(0, |places| places.0.len());
        if 4 * (state.used + more) > 3 * capacity { self.rebuild(state, more) } else { None }
    }

    /// Changes the record of an image.
    pub fn set(&self, row: u32, image: Image) {
        let (place, _) = self.places().and_then(|places| places.find(row)).expect("the image has an entry");
        place.set(row, image);
    }

    /// Removes an image: every reader sees it now, or none can see it any more.
    pub fn remove(&self, state: &mut ImagesUse, row: u32) {
        let (place, _) = self.places().and_then(|places| places.find(row)).expect("the image has an entry");
        place.0[0].store(REMOVED, Ordering::Release);
        state.entries -= 1;
    }

    /// Releases the memory when no entries are left. Returns memory that must wait for readers to pass.
    pub fn release(&self, state: &mut ImagesUse) -> Option<OldPlaces> {
        if state.entries > 0 || state.used == 0 {
            return None;
        }
        state.used = 0;
        self.replace(None)
    }

    /// The bytes of the entries.
    pub fn bytes(&self) -> usize {
        self.places().map_or(0, |places| size_of_val(places.0))
    }

    fn rebuild(&self, state: &mut ImagesUse, more: usize) -> Option<OldPlaces> {
        // At least three eighths full afterwards; the next rebuild comes at three quarters.
        let entries = state.entries + more;
        let count = (4 * entries).div_ceil(3).next_power_of_two();
        let count = if 8 * entries > 5 * count { 2 * count } else { count }.max(PLACES_MIN);
        let empty = || ImagePlace([AtomicU64::new(EMPTY), AtomicU64::new(0)]);
        let fresh: Box<[ImagePlace]> = (0..count).map(|_| empty()).collect();
        is_taken(fresh.as_ptr().cast(), size_of_val(&*fresh));
        // The system may provide this memory as zero pages, and a page that is read before it is written is
        // mapped twice. The second mapping interrupts all processors to flush their TLBs.
        for page in fresh.chunks(PAGE_PLACES) {
            page[0].0[0].store(EMPTY, Ordering::Relaxed);
        }
        for place in self.places().iter().flat_map(|places| places.0) {
            let word = place.0[0].load(Ordering::Relaxed);
            if word > REMOVED {
                ImagePlaces(&fresh).put((word >> 32) as u32, place.image(word));
            }
        }
        state.used = state.entries;
        self.replace(Some(fresh))
    }

    fn replace(&self, fresh: Option<Box<[ImagePlace]>>) -> Option<OldPlaces> {
        let old = self.places().map(|places| std::ptr::from_ref(places.0).cast_mut());
        let word = fresh.map_or(0, |fresh| {
            let halvings = u64::from(fresh.len().trailing_zeros());
            let begin = Box::into_raw(fresh).cast::<ImagePlace>() as u64;
            debug_assert!(begin >> (64 - HALVINGS_BITS) == 0);
            begin << HALVINGS_BITS | halvings
        });
        self.word.store(word, Ordering::Release);
        // SAFETY: it came from a box, and the holder of the part's lock, the caller, is the only one to take
        // it back.
        old.map(|old| OldPlaces(unsafe { Box::from_raw(old) }))
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        drop(self.replace(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;

    #[test]
    fn images_are_what_was_last_said_of_each_row() {
        let (images, mut state_of_images, mut expected) =
            (Images::default(), ImagesUse::default(), HashMap::new());
        let mut state = 1u32;
        for _ in 0..40_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let row = (state >> 8) % 500 + 1;
            let image = Image { birth: u64::from(state), older: state | 1, older_is_entered: state & 2 != 0 };
            match expected.entry(row) {
                Entry::Vacant(entry) => {
                    entry.insert(image);
                    images.insert(&mut state_of_images, row, image);
                }
                Entry::Occupied(entry) if state & 0x80 == 0 => {
                    entry.remove();
                    images.remove(&mut state_of_images, row);
                }
                Entry::Occupied(mut entry) => {
                    entry.insert(image);
                    images.set(row, image);
                }
            }
        }
        for row in 1..=500 {
            assert_eq!(images.get(row), expected.get(&row).copied(), "row {row}");
        }
        assert_eq!(state_of_images.len(), expected.len());
        assert!(images.bytes() <= 2048 * 16);
    }

    #[test]
    fn a_reader_sees_the_newest_image_born_no_later_than_its_version() {
        let (images, mut state_of_images) = (Images::default(), ImagesUse::default());
        images.insert(&mut state_of_images, 2, Image { birth: 5, older: 1, older_is_entered: false });
        images.insert(&mut state_of_images, 3, Image { birth: 9, older: 2 | GONE, older_is_entered: true });
        let seen: Vec<u32> = [4, 5, 8, 9, 10].iter().map(|&upto| images.seen(3, upto)).collect();
        assert_eq!(seen, [1, 2 | GONE, 2 | GONE, 3, 3]);
        images.insert(&mut state_of_images, 7, Image::first(6));
        assert_eq!([images.seen(7, 5), images.seen(7, 6)], [NONE, 7]);
    }
}
