//! Frames: the records of a file topic's log, each with offset, time and a checksum over all of it.
//!
//! Little-endian: u32 bytes after the checksum, u32 CRC32C of (length, bytes after the checksum), i64 offset,
//! i64 timestamp in ms, i32 key bytes (-1: no key), i32 value bytes (-1: no value), key, value. Knows nothing
//! of files: the caller decides whether a torn tail may hold acknowledged records.

use std::ops::Range;

use crate::checksum::crc32c;

pub mod kafka;

/// Bytes of a frame before its key.
pub const HEAD_BYTES: usize = 32;
const PREFIX_BYTES: usize = 8;

/// The content of a frame, without its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// None is not the same as empty.
    pub key: Option<&'a [u8]>,
    /// None is a tombstone.
    pub value: Option<&'a [u8]>,
}

/// One frame in a buffer; the ranges refer to that buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Offset within the partition.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// Where the key lies.
    pub key: Option<Range<usize>>,
    /// Where the value lies.
    pub value: Option<Range<usize>>,
    /// Where the frame ends.
    pub end: usize,
}

/// The reason why a scan stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At the end of the buffer, between two frames.
    End,
    /// The caller's limit was reached.
    Limit,
    /// The buffer ends within a frame.
    Torn,
    /// An impossible length, or lengths that contradict each other.
    BadLength,
    /// The checksum does not match.
    BadChecksum,
    /// An offset that does not grow.
    BadOffset,
}

impl Stop {
    /// The name that the Python side compares with.
    pub fn name(self) -> &'static str {
        match self {
            Stop::End => "end",
            Stop::Limit => "limit",
            Stop::Torn => "torn",
            Stop::BadLength => "length",
            Stop::BadChecksum => "checksum",
            Stop::BadOffset => "offset",
        }
    }
}

/// The limits of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Frames below this offset are checked but not returned.
    pub offset_min: i64,
    /// Maximum number of returned frames.
    pub records_max: usize,
    /// Maximum bytes of returned frames; the first frame is returned whatever its size.
    pub bytes_max: usize,
    /// Maximum bytes of one frame; a larger length is a bad length.
    pub frame_bytes_max: usize,
}

/// The result of a scan.
#[derive(Debug)]
pub struct Scan {
    /// The frames at or above `offset_min`.
    pub frames: Vec<Frame>,
    /// The first byte not consumed.
    pub end: usize,
    /// Why it stopped there.
    pub stop: Stop,
}

/// A run of frames, for finding an offset or a time without reading the frames before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Offset of its first frame.
    pub offset: i64,
    /// Byte of the buffer at which it begins.
    pub position: usize,
    /// The largest timestamp in it.
    pub timestamp_ms_max: i64,
}

/// Appends one frame to `out`.
///
/// # Panics
/// If key or value exceed an i32, which the limits of a topic rule out.
pub fn pack(out: &mut Vec<u8>, offset: i64, record: &Record<'_>) {
    let at = out.len();
    let length = HEAD_BYTES - PREFIX_BYTES + part_bytes(record.key) + part_bytes(record.value);
    out.extend_from_slice(&u32::try_from(length).expect("record within i32").to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&record.timestamp_ms.to_le_bytes());
    out.extend_from_slice(&part_length(record.key).to_le_bytes());
    out.extend_from_slice(&part_length(record.value).to_le_bytes());
    out.extend_from_slice(record.key.unwrap_or_default());
    out.extend_from_slice(record.value.unwrap_or_default());
    let crc = frame_crc(&out[at..]);
    out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Reads frames from the start of `data` until a limit or a fault.
pub fn scan(data: &[u8], limits: Limits) -> Scan {
    let (mut frames, mut end, mut bytes, mut last) = (Vec::new(), 0, 0, -1);
    loop {
        let frame = match frame_at(data, end, last, limits.frame_bytes_max) {
            Ok(frame) => frame,
            Err(stop) => return Scan { frames, end, stop },
        };
        last = frame.offset;
        if frame.offset < limits.offset_min {
            end = frame.end;
            continue;
        }
        let frame_bytes = frame.end - end;
        let full = frames.len() >= limits.records_max || bytes + frame_bytes > limits.bytes_max;
        if full && (!frames.is_empty() || limits.records_max == 0) {
            return Scan { frames, end, stop: Stop::Limit };
        }
        bytes += frame_bytes;
        end = frame.end;
        frames.push(frame);
    }
}

/// Cuts the frames of `data` into blocks of at least `block_bytes`. Returns the blocks, the first byte not
/// consumed, the offset after the last frame (-1: no frame) and why it stopped.
pub fn index(data: &[u8], block_bytes: usize, frame_bytes_max: usize) -> (Vec<Block>, usize, i64, Stop) {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut end, mut last) = (0, -1);
    loop {
        match frame_at(data, end, last, frame_bytes_max) {
            Err(stop) => return (blocks, end, last + i64::from(last >= 0), stop),
            Ok(frame) => {
                match blocks.last_mut() {
                    Some(block) if end - block.position < block_bytes => {
                        block.timestamp_ms_max = block.timestamp_ms_max.max(frame.timestamp_ms);
                    }
                    _ => blocks.push(Block {
                        offset: frame.offset,
                        position: end,
                        timestamp_ms_max: frame.timestamp_ms,
                    }),
                }
                (end, last) = (frame.end, frame.offset);
            }
        }
    }
}

/// The frame at `at`, or why no frame is there; `last` is the offset before it (-1: unknown).
fn frame_at(data: &[u8], at: usize, last: i64, frame_bytes_max: usize) -> Result<Frame, Stop> {
    let tail = &data[at..];
    if tail.is_empty() {
        return Err(Stop::End);
    }
    if tail.len() < PREFIX_BYTES {
        return Err(Stop::Torn);
    }
    let length = u32_at(tail, 0) as usize;
    if length < HEAD_BYTES - PREFIX_BYTES || length > frame_bytes_max.saturating_sub(PREFIX_BYTES) {
        return Err(Stop::BadLength);
    }
    let Some(frame) = tail.get(..PREFIX_BYTES + length) else { return Err(Stop::Torn) };
    if frame_crc(frame) != u32_at(frame, 4) {
        return Err(Stop::BadChecksum);
    }
    let (offset, timestamp_ms) = (i64_at(frame, 8), i64_at(frame, 16));
    let key = range_of(at + HEAD_BYTES, u32_at(frame, 24));
    let value = range_of(key.as_ref().map_or(at + HEAD_BYTES, |key| key.end), u32_at(frame, 28));
    let end = value.as_ref().or(key.as_ref()).map_or(at + HEAD_BYTES, |part| part.end);
    if end != at + frame.len() {
        return Err(Stop::BadLength);
    }
    // The offset after this one must be representable too.
    if offset <= last || offset < 0 || offset == i64::MAX {
        return Err(Stop::BadOffset);
    }
    Ok(Frame { offset, timestamp_ms, key, value, end })
}

fn frame_crc(frame: &[u8]) -> u32 {
    crc32c(crc32c(0, &frame[..4]), &frame[PREFIX_BYTES..])
}

fn part_bytes(part: Option<&[u8]>) -> usize {
    part.map_or(0, <[u8]>::len)
}

fn part_length(part: Option<&[u8]>) -> i32 {
    part.map_or(-1, |bytes| i32::try_from(bytes.len()).expect("record within i32"))
}

fn range_of(start: usize, length: u32) -> Option<Range<usize>> {
    (length != u32::MAX).then(|| start..start.saturating_add(length as usize))
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Owned = (i64, Option<Vec<u8>>, Option<Vec<u8>>);
    const WIDE: Limits =
        Limits { offset_min: 0, records_max: usize::MAX, bytes_max: usize::MAX, frame_bytes_max: 1 << 20 };

    fn packed(records: &[Owned]) -> Vec<u8> {
        let mut out = Vec::new();
        for (offset, (timestamp_ms, key, value)) in (0..).zip(records) {
            let record = Record { timestamp_ms: *timestamp_ms, key: key.as_deref(), value: value.as_deref() };
            pack(&mut out, offset, &record);
        }
        out
    }

    fn unpacked(data: &[u8], scan: &Scan) -> Vec<Owned> {
        let part = |range: &Option<Range<usize>>| range.clone().map(|range| data[range].to_vec());
        scan.frames.iter().map(|frame| (frame.timestamp_ms, part(&frame.key), part(&frame.value))).collect()
    }

    fn some_records() -> impl Strategy<Value = Vec<Owned>> {
        let part = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
        proptest::collection::vec((any::<i64>(), part(), part()), 1..12)
    }

    #[test]
    fn a_frame_has_these_bytes() {
        let mut out = Vec::new();
        pack(&mut out, 7, &Record { timestamp_ms: 1000, key: Some(b"k"), value: None });
        let crc = out[4..8].to_vec();
        let mut wanted = vec![25, 0, 0, 0];
        wanted.extend_from_slice(&crc);
        wanted.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0]);
        wanted.extend_from_slice(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, b'k']);
        assert_eq!(out, wanted);
        assert_eq!(u32::from_le_bytes(crc.try_into().unwrap()), frame_crc(&wanted));
    }

    #[test]
    fn limits_stop_before_the_frame_that_would_exceed_them() {
        let data = packed(&[(1, None, Some(vec![0; 100])), (2, None, Some(vec![0; 100])), (3, None, None)]);
        let two = scan(&data, Limits { records_max: 2, ..WIDE });
        assert_eq!((two.frames.len(), two.stop, two.end), (2, Stop::Limit, 264));
        let first = scan(&data, Limits { bytes_max: 1, ..WIDE });
        assert_eq!((first.frames.len(), first.stop, first.end), (1, Stop::Limit, 132));
        let later = scan(&data, Limits { offset_min: 2, ..WIDE });
        assert_eq!((later.frames.len(), later.frames[0].offset, later.stop), (1, 2, Stop::End));
        let none = scan(&data, Limits { frame_bytes_max: 131, ..WIDE });
        assert_eq!((none.frames.len(), none.stop), (0, Stop::BadLength));
    }

    #[test]
    fn an_offset_must_grow() {
        let mut data = packed(&[(1, None, None)]);
        data.extend_from_within(..);
        let result = scan(&data, WIDE);
        assert_eq!((result.frames.len(), result.stop, result.end), (1, Stop::BadOffset, 32));
    }

    #[test]
    fn there_is_an_offset_behind_every_frame() {
        for (offset, stop) in [(i64::MAX - 1, Stop::End), (i64::MAX, Stop::BadOffset)] {
            let mut data = Vec::new();
            pack(&mut data, offset, &Record { timestamp_ms: 0, key: None, value: None });
            assert_eq!(scan(&data, WIDE).stop, stop);
            let (_, _, next, stopped) = index(&data, 64, 1 << 20);
            assert_eq!((next, stopped), if stop == Stop::End { (i64::MAX, stop) } else { (-1, stop) });
        }
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_back(records in some_records()) {
            let data = packed(&records);
            let result = scan(&data, WIDE);
            prop_assert_eq!((result.stop, result.end), (Stop::End, data.len()));
            prop_assert_eq!(unpacked(&data, &result), records);
        }

        #[test]
        fn a_cut_buffer_gives_whole_frames_only(records in some_records(), cut in any::<prop::sample::Index>()) {
            let data = packed(&records);
            let cut = cut.index(data.len());
            let result = scan(&data[..cut], WIDE);
            let complete = scan(&data, WIDE).frames.iter().filter(|frame| frame.end <= cut).count();
            prop_assert_eq!(result.frames.len(), complete);
            prop_assert_eq!(result.stop, if result.end == cut { Stop::End } else { Stop::Torn });
        }

        #[test]
        fn a_flipped_bit_is_never_taken_for_a_record(records in some_records(), bit in any::<prop::sample::Index>()) {
            let mut data = packed(&records);
            let bit = bit.index(data.len() * 8);
            data[bit / 8] ^= 1 << (bit % 8);
            let result = scan(&data, WIDE);
            prop_assert!(result.stop != Stop::End);
            prop_assert!(result.end <= bit / 8);
            prop_assert_eq!(&unpacked(&data, &result)[..], &records[..result.frames.len()]);
        }

        #[test]
        fn garbage_is_scanned_without_harm(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(scan(&data, WIDE).end <= data.len());
            prop_assert!(index(&data, 64, 1 << 20).1 <= data.len());
        }

        #[test]
        fn blocks_cover_every_frame(records in some_records(), block_bytes in 1usize..200) {
            let data = packed(&records);
            let (blocks, end, next, stop) = index(&data, block_bytes, 1 << 20);
            prop_assert_eq!((end, next, stop), (data.len(), i64::try_from(records.len()).unwrap(), Stop::End));
            for (at, block) in blocks.iter().enumerate() {
                let until = blocks.get(at + 1).map_or(records.len(), |later| usize::try_from(later.offset).unwrap());
                let from = usize::try_from(block.offset).unwrap();
                let latest = records[from..until].iter().map(|record| record.0).max();
                prop_assert_eq!(Some(block.timestamp_ms_max), latest);
            }
        }
    }
}
