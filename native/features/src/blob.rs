//! Stored states as bytes: a head, the columns, and a checksum. Amounts are varints; all else is little-endian.

use streamlearn_wire::avro::varint;
use streamlearn_wire::checksum::crc32c;

use crate::definition::{Definition, Kept};
use crate::error::{Error, Result};
use crate::history::History;
use crate::state::State;
use crate::tiles::{TILES, Tiles, place};

/// The name of the format and its version.
const MAGIC: [u8; 4] = *b"SLF2";
/// The magic, the definition, the position and the time of the newest interaction.
const HEAD: usize = 28;
const CHECKSUM: usize = 4;
/// The most bytes of an amount and its tile; those of an interaction without its keys.
const AMOUNT_MAX: usize = 1 + varint::BYTES_MAX;
const ENTRY: usize = 16;

impl State {
    /// Appends the state as bytes.
    pub fn encode(&self, definition: &Definition, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend(MAGIC);
        out.extend(definition.id.to_le_bytes());
        out.extend(self.position.to_le_bytes());
        out.extend(self.newest_ms.to_le_bytes());
        self.since_ms.iter().for_each(|time| out.extend(time.to_le_bytes()));
        for tiles in &self.windows {
            out.extend(tiles.newest.to_le_bytes());
            out.push(tiles.known().count() as u8);
            for (tile, amount) in tiles.known() {
                out.push((tiles.newest - tile) as u8);
                varint::write(out, amount);
            }
        }
        for history in &self.histories {
            out.extend((history.times.len() as u16).to_le_bytes());
            history.times.iter().for_each(|time| out.extend(time.to_le_bytes()));
            history.identities.iter().for_each(|identity| out.extend(identity.to_le_bytes()));
            history.keys.iter().for_each(|key| out.extend(key.to_le_bytes()));
        }
        let checksum = crc32c(0, &out[begin..]);
        out.extend(checksum.to_le_bytes());
    }

    /// Reads a state. Nothing larger than a state of this definition is ever allocated.
    pub fn decode(definition: &Definition, bytes: &[u8]) -> Result<Self> {
        if bytes.len() < HEAD + CHECKSUM || bytes[..MAGIC.len()] != MAGIC {
            return Err(Error::Damaged("another format"));
        }
        let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        if crc32c(0, body).to_le_bytes() != checksum {
            return Err(Error::Damaged("the checksum differs"));
        }
        let mut from = Reader(&body[MAGIC.len()..]);
        let id = from.number()? as u64;
        if id != definition.id {
            return Err(Error::Other(id));
        }
        let mut state = Self::new(definition);
        state.position = from.number()?;
        state.newest_ms = from.number()?;
        for time in &mut state.since_ms {
            *time = from.number()?;
        }
        for tiles in &mut state.windows {
            from.tiles(tiles)?;
        }
        for (kept, history) in definition.histories.iter().zip(&mut state.histories) {
            *history = from.history(kept)?;
        }
        if from.0.is_empty() { Ok(state) } else { Err(Error::Damaged("bytes remain")) }
    }
}

impl Definition {
    /// The largest size of a stored state.
    pub fn bytes_max(&self) -> usize {
        let of_windows = self.windows.len() * (8 + 1 + TILES * AMOUNT_MAX);
        let of_histories =
            self.histories.iter().map(|kept| 2 + kept.length * (ENTRY + 8 * kept.columns.len()));
        HEAD + 8 * self.since.len() + of_windows + of_histories.sum::<usize>() + CHECKSUM
    }

    /// The most memory of a state.
    pub fn memory_max(&self) -> usize {
        let of_histories = self
            .histories
            .iter()
            .map(|kept| size_of::<History>() + kept.length * (ENTRY + 8 * kept.columns.len()));
        size_of::<State>()
            + 8 * self.since.len()
            + self.windows.len() * size_of::<Tiles>()
            + of_histories.sum::<usize>()
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Error::Damaged("it ends too early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.take()?))
    }

    /// Reads the tiles of a window into `tiles`, which has none.
    fn tiles(&mut self, tiles: &mut Tiles) -> Result<()> {
        tiles.newest = self.number()?;
        let [count] = self.take()?;
        if count > 0 && tiles.newest == i64::MIN {
            return Err(Error::Damaged("a window has tiles before the first"));
        }
        let (mut rest, mut least) = (self.0, 0);
        for _ in 0..count {
            let (&back, after) = rest.split_first().ok_or(Error::Damaged("it ends too early"))?;
            let (amount, length) = varint::read(after).map_err(|_| Error::Damaged("it ends too early"))?;
            let is_next = (least..TILES).contains(&usize::from(back)) && amount != 0;
            let Some(tile) = tiles.newest.checked_sub(i64::from(back)).filter(|_| is_next) else {
                return Err(Error::Damaged("a window has tiles in no order"));
            };
            tiles.amounts[place(tile)] = amount;
            (rest, least) = (&after[length..], usize::from(back) + 1);
        }
        self.0 = rest;
        Ok(())
    }

    fn history(&mut self, kept: &Kept) -> Result<History> {
        let count = usize::from(u16::from_le_bytes(self.take()?));
        if count > kept.length || self.0.len() < count * (ENTRY + 8 * kept.columns.len()) {
            return Err(Error::Damaged("a history is too long"));
        }
        let mut history = History::default();
        for _ in 0..count {
            history.times.push(self.number()?);
        }
        for _ in 0..count {
            history.identities.push(self.number()? as u64);
        }
        for _ in 0..count * kept.columns.len() {
            history.keys.push(self.number()? as u64);
        }
        let mut entries = history.times.iter().zip(&history.identities);
        let is_ordered = entries.next().is_none_or(|first| {
            let mut before = first;
            entries.all(|one| std::mem::replace(&mut before, one) < one)
        });
        if is_ordered { Ok(history) } else { Err(Error::Damaged("a history is in no order")) }
    }
}
