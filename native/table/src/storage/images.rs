//! Images: of rows that not every reader sees, which version they were born in and which row they replaced.
//!
//! Rows with one image that every reader sees are not in here at all, so that they pay nothing. Readers probe
//! without a lock; the holder of the part's lock writes, under the head of the key's line, which tells readers
//! whether what they gathered from several entries belongs together.

use std::sync::atomic::Ordering;

use crate::storage::sync::{AtomicU64, is_given, is_taken};

/// Said of an image: the key was gone in it. Its row is not read.
pub const GONE: u32 = 1 << 31;
/// The id of no image.
pub const NONE: u32 = 0;

/// The row of an image's id.
#[inline(always)]
pub fn row_of(id: u32) -> u32 {
    id & !GONE
}

const EMPTY: u64 = 0;
/// Was an entry; probes go on past it. No row is 0, so that no entry reads like this.
const REMOVED: u64 = 1;
const PLACES_MIN: usize = if cfg!(model) { 8 } else { 16 };
/// How many places a page of memory has.
const PAGE_PLACES: usize = 4096 / size_of::<[u64; 2]>();

/// What is known of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// When it was born: the count of versions that were open before.
    pub birth: u64,
    /// The id of the image it replaced, or NONE.
    pub older: u32,
    /// Whether that one was entered here when it was replaced. One that was not never is, so that nobody need look.
    pub older_is_entered: bool,
}

impl Image {
    /// Of a key that had nothing before.
    pub fn first(birth: u64) -> Self {
        Self { birth, older: NONE, older_is_entered: false }
    }
}

/// Of the second word of an entry: the older image is entered too.
const OLDER_IS_ENTERED: u64 = 1 << 63;

/// An entry: the row and the older image in one word, the birth in the other.
#[repr(align(16))]
struct ImagePlace([AtomicU64; 2]);

/// Where entries are: a power of two of them. Address and count in one word, so that readers load once.
#[derive(Clone, Copy)]
struct ImagePlaces<'a>(&'a [ImagePlace]);

impl<'a> ImagePlaces<'a> {
    #[inline(always)]
    fn first(self, row: u32) -> usize {
        if cfg!(model) {
            // So that every entry takes the place of one that went.
            return 0;
        }
        // Rows are taken in order: four of them share a line of memory. The upper bits of the product depend on every
        // bit of what is multiplied.
        let mixed = u64::from(row >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((mixed << 2) as usize | row as usize & 3) & (self.0.len() - 1)
    }

    #[inline(always)]
    fn find(self, row: u32) -> Option<(&'a ImagePlace, u64)> {
        let mut at = self.first(row);
        loop {
            let word = self.0[at].0[0].load(Ordering::Acquire);
            if (word >> 32) as u32 == row {
                return Some((&self.0[at], word));
            }
            if word == EMPTY {
                return None;
            }
            at = (at + 1) & (self.0.len() - 1);
        }
    }

    /// Put an entry where none is. Gives whether it took a place that was empty.
    fn put(self, row: u32, image: Image) -> bool {
        let mut at = self.first(row);
        loop {
            let word = self.0[at].0[0].load(Ordering::Relaxed);
            if word <= REMOVED {
                self.0[at].set(row, image);
                return word == EMPTY;
            }
            at = (at + 1) & (self.0.len() - 1);
        }
    }
}

impl ImagePlace {
    #[inline(always)]
    fn set(&self, row: u32, image: Image) {
        let entered = if image.older_is_entered { OLDER_IS_ENTERED } else { 0 };
        // Who reads this for the birth of an entry that was here before must find that one's line changed.
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

/// What readers may still be probing; drop it after their grace.
pub struct OldPlaces(Box<[ImagePlace]>);

impl Drop for OldPlaces {
    fn drop(&mut self) {
        is_given(self.0.as_ptr().cast(), size_of_val(&*self.0));
    }
}

/// The images of one part.
#[derive(Default)]
pub struct Images {
    /// The address of the places, and how often their count halves to one; 0 for none.
    word: AtomicU64,
    /// The last birth that anything in the part may have: who sees that one sees the newest of everything.
    latest: AtomicU64,
}

/// An address takes all but so many bits of a word.
const HALVINGS_BITS: u32 = 8;

/// What the holder of the part's lock knows of its images.
#[derive(Default)]
pub struct ImagesUse {
    entries: usize,
    used: usize,
}

impl ImagesUse {
    /// Images there are.
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
        // SAFETY: places stay until a grace has passed after they were replaced, and the caller is within one or
        // holds the part's lock.
        Some(ImagePlaces(unsafe { std::slice::from_raw_parts(begin, 1 << halvings) }))
    }

    /// Whether who sees `upto` sees the newest image of everything here. To be asked after the image's id was read.
    #[inline(always)]
    pub fn are_seen(&self, upto: u64) -> bool {
        self.latest.load(Ordering::Acquire) <= upto
    }

    /// Say that something is born here, before anything leads to it.
    #[inline(always)]
    pub fn expect(&self, birth: u64) {
        self.latest.store(birth, Ordering::Release);
    }

    /// Where an image's entry is looked for first, to prefetch it.
    #[inline(always)]
    pub fn address(&self, row: u32) -> *const u8 {
        self.places()
            .map_or(std::ptr::null(), |places| std::ptr::from_ref(&places.0[places.first(row)]).cast())
    }

    /// What is known of an image; None when every reader sees it.
    #[inline(always)]
    pub fn get(&self, row: u32) -> Option<Image> {
        let (place, word) = self.places()?.find(row)?;
        Some(place.image(word))
    }

    /// The newest image born no later than `upto`, going back from `id`; NONE when there is none.
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

    /// Enter an image. Gives what must wait for readers to pass.
    pub fn insert(&self, held: &mut ImagesUse, row: u32, image: Image) -> Option<OldPlaces> {
        debug_assert!(row != 0 && row & GONE == 0 && self.get(row).is_none());
        let replaced = self.reserve(held, 1);
        let places = self.places().expect("rebuild made them");
        held.used += usize::from(places.put(row, image));
        held.entries += 1;
        replaced
    }

    /// Make room for so many more. Gives what must wait for readers to pass.
    #[inline(always)]
    pub fn reserve(&self, held: &mut ImagesUse, more: usize) -> Option<OldPlaces> {
        let capacity = self.places().map_or(0, |places| places.0.len());
        if 4 * (held.used + more) > 3 * capacity { self.rebuild(held, more) } else { None }
    }

    /// Change what is known of an image.
    pub fn set(&self, row: u32, image: Image) {
        let (place, _) = self.places().and_then(|places| places.find(row)).expect("the image is in here");
        place.set(row, image);
    }

    /// Take an image out: every reader sees it now, or nobody does any more.
    pub fn remove(&self, held: &mut ImagesUse, row: u32) {
        let (place, _) = self.places().and_then(|places| places.find(row)).expect("the image is in here");
        place.0[0].store(REMOVED, Ordering::Release);
        held.entries -= 1;
    }

    /// Give the memory back once nothing is in it. Gives what must wait for readers to pass.
    pub fn release(&self, held: &mut ImagesUse) -> Option<OldPlaces> {
        if held.entries > 0 || held.used == 0 {
            return None;
        }
        held.used = 0;
        self.replace(None)
    }

    /// Bytes they take.
    pub fn bytes(&self) -> usize {
        self.places().map_or(0, |places| size_of_val(places.0))
    }

    fn rebuild(&self, held: &mut ImagesUse, more: usize) -> Option<OldPlaces> {
        // At least three eighths full afterwards, and three quarters at most before the next time.
        let entries = held.entries + more;
        let count = (4 * entries).div_ceil(3).next_power_of_two();
        let count = if 8 * entries > 5 * count { 2 * count } else { count }.max(PLACES_MIN);
        let empty = || ImagePlace([AtomicU64::new(EMPTY), AtomicU64::new(0)]);
        let fresh: Box<[ImagePlace]> = (0..count).map(|_| empty()).collect();
        is_taken(fresh.as_ptr().cast(), size_of_val(&*fresh));
        // Such memory may come from the system as zeros, and a page of it that is read before it is written is mapped
        // twice: the second time all processors are told to forget the first, in the middle of what they answer.
        for page in fresh.chunks(PAGE_PLACES) {
            page[0].0[0].store(EMPTY, Ordering::Relaxed);
        }
        for place in self.places().iter().flat_map(|places| places.0) {
            let word = place.0[0].load(Ordering::Relaxed);
            if word > REMOVED {
                ImagePlaces(&fresh).put((word >> 32) as u32, place.image(word));
            }
        }
        held.used = held.entries;
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
        // SAFETY: it came from a box, and nobody else takes it back: the caller holds the part's lock.
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
        let (images, mut held, mut expected) = (Images::default(), ImagesUse::default(), HashMap::new());
        let mut state = 1u32;
        for _ in 0..40_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let row = (state >> 8) % 500 + 1;
            let image = Image { birth: u64::from(state), older: state | 1, older_is_entered: state & 2 != 0 };
            match expected.entry(row) {
                Entry::Vacant(entry) => {
                    entry.insert(image);
                    images.insert(&mut held, row, image);
                }
                Entry::Occupied(entry) if state & 0x80 == 0 => {
                    entry.remove();
                    images.remove(&mut held, row);
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
        assert_eq!(held.len(), expected.len());
        assert!(images.bytes() <= 2048 * 16);
    }

    #[test]
    fn a_reader_sees_the_newest_image_born_no_later_than_its_version() {
        let (images, mut held) = (Images::default(), ImagesUse::default());
        images.insert(&mut held, 2, Image { birth: 5, older: 1, older_is_entered: false });
        images.insert(&mut held, 3, Image { birth: 9, older: 2 | GONE, older_is_entered: true });
        let seen: Vec<u32> = [4, 5, 8, 9, 10].iter().map(|&upto| images.seen(3, upto)).collect();
        assert_eq!(seen, [1, 2 | GONE, 2 | GONE, 3, 3]);
        images.insert(&mut held, 7, Image::first(6));
        assert_eq!([images.seen(7, 5), images.seen(7, 6)], [NONE, 7]);
    }
}
