//! Sheets: memory for the lines of parts, cut so that a small growth frees the old memory.
//!
//! A part's lines are one block. Blocks of one size share sheets of huge pages. A block is a span divided by
//! 5 to 8, and the next span is twice as large, so that a part grows by a seventh to a quarter. Parts have
//! eight phases, whose spans differ by an eighth of a doubling. At any number of keys some parts have just
//! grown and some are nearly full, so that neither memory nor growth time comes in steps. The parts of a
//! phase grow together, so that their sheets empty soon after the first block was left and are freed whole.

use std::collections::HashMap;
use std::io;

use crate::storage::memory::{HUGE_BYTES, Pages, Reserved};
use crate::storage::sync::{is_given, is_taken};

const LINE_BYTES: usize = 64;
const CUTS_MIN: usize = 5;
const CUTS_MAX: usize = 8;
/// Lines of the smallest span of each phase: 64 times the powers of the eighth root of two.
const SPAN_LINES: [usize; PHASES] =
    if cfg!(feature = "model") { [16; PHASES] } else { [64, 70, 76, 83, 91, 99, 108, 117] };
/// Phases of growth.
pub const PHASES: usize = 8;
/// Approximate number of blocks in a sheet.
const BLOCKS: std::ops::Range<usize> = 16..48;
/// Smaller blocks use small pages, so that a table of few keys does not take megabytes.
const HUGE_BLOCK_BYTES_MIN: usize = 1 << 16;
const PAGE_BYTES: usize = 4096;

/// A block size: a span of lines, cut into equal blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    span_lines: usize,
    cuts: usize,
}

impl Size {
    /// The smallest size of a phase.
    pub fn smallest(phase: usize) -> Self {
        Self { span_lines: SPAN_LINES[phase], cuts: CUTS_MAX }
    }

    /// The next larger size.
    pub fn larger(self) -> Self {
        match self.cuts {
            CUTS_MIN => Self { span_lines: 2 * self.span_lines, cuts: CUTS_MAX },
            cuts => Self { cuts: cuts - 1, ..self },
        }
    }

    /// The lines of a block.
    pub fn lines(self) -> usize {
        self.span_lines / self.cuts
    }

    fn block_bytes(self) -> usize {
        self.lines() * LINE_BYTES
    }

    /// Blocks per sheet: the number that leaves the least space after the last whole huge page.
    fn blocks(self) -> usize {
        let waste_share = |blocks: usize| {
            let bytes = blocks * self.block_bytes();
            (bytes % HUGE_BYTES) * 1000 / bytes
        };
        BLOCKS.min_by_key(|&blocks| waste_share(blocks)).expect("there are some")
    }
}

/// Memory for the lines of one part. Clear it before use, and return it to its sheets.
#[derive(Debug)]
pub struct Block {
    /// The start address, aligned to 64 bytes.
    pub begin: *mut u8,
    /// Its size.
    pub size: Size,
    sheet: usize,
    is_fresh: bool,
}

// SAFETY: it is plain memory; its users synchronise their accesses.
unsafe impl Send for Block {}

impl Block {
    /// Zeroes it. Separate from `take`, since it takes longer than others should wait for the sheets' lock.
    pub fn clear(&self) {
        if !self.is_fresh {
            // SAFETY: the block is inside its sheet, and only the caller has it.
            unsafe { self.begin.write_bytes(0, self.size.block_bytes()) };
            return;
        }
        // A page that is read first is mapped twice, first as a zero page and then as its own.
        for page in (0..self.size.block_bytes()).step_by(PAGE_BYTES) {
            // SAFETY: as above.
            unsafe { self.begin.add(page).write_volatile(0) };
        }
    }
}

struct Sheet {
    memory: Reserved,
    size: Size,
    free: Vec<u32>,
    /// Blocks from here on were never used, so they are zero and take no memory.
    fresh: usize,
    used: usize,
}

/// All sheets of one table.
#[derive(Default)]
pub struct Sheets {
    sheets: HashMap<usize, Sheet>,
    /// For each size, the sheets with a free block.
    open: HashMap<Size, Vec<usize>>,
    next: usize,
}

impl Sheets {
    /// Takes a block of a size.
    pub fn take(&mut self, size: Size) -> io::Result<Block> {
        let open = self.open.entry(size).or_default();
        let number = match open.last() {
            Some(&number) => number,
            None => {
                let is_small = size.block_bytes() < HUGE_BLOCK_BYTES_MIN;
                let pages = if is_small { Pages::Small } else { Pages::Huge };
                let memory = Reserved::new(size.blocks() * size.block_bytes(), pages)?;
                self.next += 1;
                self.sheets.insert(self.next, Sheet { memory, size, free: Vec::new(), fresh: 0, used: 0 });
                open.push(self.next);
                self.next
            }
        };
        let sheet = self.sheets.get_mut(&number).expect("open sheets exist");
        let (at, is_fresh) = match sheet.free.pop() {
            Some(at) => (at as usize, false),
            None => (sheet.fresh, true),
        };
        sheet.fresh += usize::from(is_fresh);
        sheet.used += 1;
        if sheet.used == size.blocks() {
            open.pop();
        }
        // SAFETY: the block is inside its sheet, and only the caller has it.
        let begin = unsafe { sheet.memory.begin().add(at * size.block_bytes()) };
        is_taken(begin, size.block_bytes());
        Ok(Block { begin, size, sheet: number, is_fresh })
    }

    /// Returns a block that no reader can still see. After the last block of a sheet, returns the sheet's
    /// memory to be dropped.
    pub fn give(&mut self, block: Block) -> Option<Reserved> {
        is_given(block.begin, block.size.block_bytes());
        let sheet = self.sheets.get_mut(&block.sheet).expect("a block's sheet stays while it is used");
        let open = self.open.entry(block.size).or_default();
        if sheet.used == block.size.blocks() {
            open.push(block.sheet);
        }
        sheet.used -= 1;
        let at = (block.begin as usize - sheet.memory.begin() as usize) / block.size.block_bytes();
        sheet.free.push(at as u32);
        if sheet.used == 0 {
            open.retain(|&number| number != block.sheet);
            return self.sheets.remove(&block.sheet).map(|sheet| sheet.memory);
        }
        None
    }

    /// Bytes that were touched and not released.
    pub fn bytes(&self) -> usize {
        let touched = |sheet: &Sheet| sheet.fresh * sheet.size.block_bytes();
        self.sheets.values().map(touched).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_a_seventh_to_a_quarter() {
        for phase in 0..PHASES {
            let mut size = Size::smallest(phase);
            for _ in 0..60 {
                let (lines, next) = (size.lines(), size.larger().lines());
                assert!(next > lines && next * 100 <= lines * 134, "{lines} lines, then {next}");
                assert!(size.lines() < 64 || (next * 100 > lines * 112 && next * 100 < lines * 128));
                size = size.larger();
            }
        }
    }

    #[test]
    fn blocks_do_not_meet_are_zero_and_sheets_are_given_back() {
        let (mut sheets, size) = (Sheets::default(), Size::smallest(3));
        let mut blocks: Vec<Block> = (0..5_000).map(|_| sheets.take(size).unwrap()).collect();
        let mut begins: Vec<usize> = blocks.iter().map(|block| block.begin as usize).collect();
        begins.sort_unstable();
        assert!(begins.windows(2).all(|pair| pair[1] - pair[0] >= size.block_bytes()));
        for block in &blocks {
            // SAFETY: this test owns the block.
            unsafe { block.begin.write_bytes(7, size.block_bytes()) };
        }
        assert!(sheets.give(blocks.pop().unwrap()).is_none());
        let again = sheets.take(size).unwrap();
        again.clear();
        // SAFETY: as above.
        assert_eq!(unsafe { *again.begin }, 0);
        blocks.push(again);
        blocks.drain(..).for_each(|block| drop(sheets.give(block)));
        assert_eq!((sheets.bytes(), sheets.sheets.len()), (0, 0));
    }
}
