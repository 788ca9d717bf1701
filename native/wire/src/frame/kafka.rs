//! Kafka's record batch, magic 2: the bytes of a Produce request and of a Fetch response.
//!
//! Big-endian: a 61-byte head, then records of zigzag varints. The caller decompresses.

use std::ops::Range;

use super::{Frame, Record};
use crate::checksum::crc32c;

/// Bytes of a batch before its records.
pub const HEAD_BYTES: usize = 61;
const PREFIX_BYTES: usize = 12;
const CHECKED_FROM: usize = 21;
const MAGIC: u8 = 2;
/// The smallest record: length, attributes, time, offset, two lengths and a header count, at least a byte
/// each.
const RECORD_BYTES_MIN: usize = 7;
/// The most bytes of a record besides its key and value: six varints and two single bytes.
const FIELDS_BYTES_MAX: usize = 48;
/// Maximum records for which memory is reserved before they are read.
const RECORDS_AT_ONCE: usize = 65_536;

/// The idempotent producer's identity, by which a broker drops duplicates. All fields are -1 without
/// idempotence.
#[derive(Clone, Copy, Debug)]
pub struct Producer {
    /// The id that the broker assigned to the producer.
    pub id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The sequence number of the batch's first record in the partition.
    pub sequence: i32,
}

/// The head of a batch in a buffer.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Offset of the first record that was written to it.
    pub base_offset: i64,
    /// Offset of the last record that was written to it; compaction may have removed any of them.
    pub last_offset: i64,
    /// The leader epoch in which the broker appended it.
    pub leader_epoch: i32,
    /// 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    pub codec: u8,
    /// Whether it is part of a transaction.
    pub transactional: bool,
    /// Whether the broker wrote it to end a transaction; its record is not the user's.
    pub control: bool,
    /// The producer's id, or -1.
    pub producer_id: i64,
    /// The records' range in the buffer, still compressed.
    pub payload: Range<usize>,
    records: usize,
    base_timestamp_ms: i64,
    appended_timestamp_ms: Option<i64>,
}

/// Packs records as one uncompressed batch.
///
/// # Panics
/// If `records` is empty, or if lengths exceed an i32, which the limits of a topic rule out.
pub fn pack(producer: Producer, records: &[Record<'_>]) -> Vec<u8> {
    let base_ms = records.first().expect("a batch has records").timestamp_ms;
    let latest_ms = records.iter().map(|record| record.timestamp_ms).max().unwrap_or(base_ms);
    let count = i32::try_from(records.len()).expect("batch within i32");
    let parts = records.iter().flat_map(|record| [record.key, record.value]).flatten();
    let bytes: usize = parts.map(<[u8]>::len).sum();
    let mut out = Vec::with_capacity(HEAD_BYTES + bytes + FIELDS_BYTES_MAX * records.len());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[0; 4]); // length, filled in at the end
    out.extend_from_slice(&(-1i32).to_be_bytes()); // leader epoch, which the broker fills in
    out.push(MAGIC);
    out.extend_from_slice(&[0; 4]); // checksum, filled in at the end
    out.extend_from_slice(&0i16.to_be_bytes());
    out.extend_from_slice(&(count - 1).to_be_bytes());
    out.extend_from_slice(&base_ms.to_be_bytes());
    out.extend_from_slice(&latest_ms.to_be_bytes());
    out.extend_from_slice(&producer.id.to_be_bytes());
    out.extend_from_slice(&producer.epoch.to_be_bytes());
    out.extend_from_slice(&producer.sequence.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    let mut body = Vec::new();
    for (delta, record) in (0..).zip(records) {
        body.clear();
        body.push(0);
        put_varint(&mut body, record.timestamp_ms.wrapping_sub(base_ms));
        put_varint(&mut body, delta);
        put_part(&mut body, record.key);
        let value = record.value.unwrap_or_default();
        put_varint(&mut body, record.value.map_or(-1, |bytes| bytes.len() as i64));
        put_varint(&mut out, (body.len() + value.len() + 1) as i64);
        out.extend_from_slice(&body);
        out.extend_from_slice(value); // which may be large
        out.push(0);
    }
    let length = i32::try_from(out.len() - PREFIX_BYTES).expect("batch within i32");
    out[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c(0, &out[CHECKED_FROM..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    out
}

/// The batch at `at`, or None if the buffer ends first, as the last batch of a response may.
///
/// # Errors
/// If the bytes are not a batch of this format, or if the checksum does not match.
pub fn batch_at(data: &[u8], at: usize) -> Result<Option<Batch>, String> {
    let tail = &data[at..];
    if tail.len() < HEAD_BYTES {
        return Ok(None);
    }
    let fault = |reason: String| format!("record batch at byte {at}: {reason}");
    if tail[16] != MAGIC {
        return Err(fault(format!("format {}, expected {MAGIC}", tail[16])));
    }
    let length = usize::try_from(i32_at(tail, 8)).unwrap_or(0);
    if length < HEAD_BYTES - PREFIX_BYTES {
        return Err(fault(format!("length {}", i32_at(tail, 8))));
    }
    let Some(batch) = tail.get(..PREFIX_BYTES + length) else { return Ok(None) };
    let (stated, computed) = (i32_at(batch, 17) as u32, crc32c(0, &batch[CHECKED_FROM..]));
    if stated != computed {
        return Err(fault(format!("checksum {stated:08x}, its bytes have {computed:08x}")));
    }
    let attributes = batch[22];
    let base_offset = i64_at(batch, 0);
    let last_delta = i32_at(batch, 23);
    let records = usize::try_from(i32_at(batch, 57)).map_err(|_| fault("negative count".into()))?;
    // The offset after the last record must be representable too.
    if base_offset < 0 || last_delta < 0 || base_offset >= i64::MAX - i64::from(last_delta) {
        return Err(fault(format!("offset {base_offset}, last offset delta {last_delta}")));
    }
    Ok(Some(Batch {
        base_offset,
        last_offset: base_offset + i64::from(last_delta),
        leader_epoch: i32_at(batch, 12),
        codec: attributes & 7,
        transactional: attributes & 16 != 0,
        control: attributes & 32 != 0,
        producer_id: i64_at(batch, 43),
        payload: at + HEAD_BYTES..at + batch.len(),
        records,
        base_timestamp_ms: i64_at(batch, 27),
        appended_timestamp_ms: (attributes & 8 != 0).then(|| i64_at(batch, 35)),
    }))
}

/// Bytes of memory that a batch's records take in addition to its decompressed payload.
///
/// # Errors
/// If the batch states more records than fit into the payload.
pub fn frames_bytes(batch: &Batch, payload: &[u8]) -> Result<usize, String> {
    let (records, records_max) = (batch.records, payload.len() / RECORD_BYTES_MIN);
    if records > records_max {
        let (bytes, offset) = (payload.len(), batch.base_offset);
        return Err(format!("{records} records in the {bytes} bytes of the batch at offset {offset}"));
    }
    Ok(records * size_of::<Frame>())
}

/// The records of a batch from its decompressed payload; ranges refer to `payload`.
///
/// # Errors
/// If a varint, a length or the count contradicts the payload.
pub fn records_of(batch: &Batch, payload: &[u8]) -> Result<Vec<Frame>, String> {
    let mut cursor = BatchCursor { data: payload, at: 0 };
    frames_bytes(batch, payload)?;
    let mut frames = Vec::with_capacity(batch.records.min(RECORDS_AT_ONCE));
    for number in 0..batch.records {
        let frame = record_at(batch, &mut cursor);
        frames.push(
            frame.ok_or_else(|| format!("record {number} of the batch at offset {}", batch.base_offset))?,
        );
    }
    if cursor.at != payload.len() {
        return Err(format!(
            "{} bytes after the records of the batch at {}",
            payload.len() - cursor.at,
            batch.base_offset
        ));
    }
    Ok(frames)
}

/// Whether a control batch's payload is an abort marker (its key is a version and a type, both i16).
pub fn is_abort(batch: &Batch, payload: &[u8]) -> bool {
    let key = records_of(batch, payload).ok().and_then(|frames| frames.first()?.key.clone());
    key.is_some_and(|key| payload[key].get(2..4) == Some(&[0, 0]))
}

fn record_at(batch: &Batch, cursor: &mut BatchCursor<'_>) -> Option<Frame> {
    let length = usize::try_from(cursor.varint()?).ok()?;
    let end = cursor.at.checked_add(length).filter(|end| *end <= cursor.data.len())?;
    cursor.at += 1; // attributes, unused
    let timestamp_ms = batch.base_timestamp_ms.wrapping_add(cursor.varint()?);
    let offset = batch.base_offset.checked_add(cursor.varint()?)?;
    let key = cursor.part()?;
    let value = cursor.part()?;
    // Headers are not read; the record's length leads past them.
    let frame =
        Frame { offset, timestamp_ms: batch.appended_timestamp_ms.unwrap_or(timestamp_ms), key, value, end };
    let valid = cursor.at <= end && (batch.base_offset..=batch.last_offset).contains(&offset);
    cursor.at = end;
    valid.then_some(frame)
}

struct BatchCursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl BatchCursor<'_> {
    fn varint(&mut self) -> Option<i64> {
        let mut raw = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.data.get(self.at)?;
            self.at += 1;
            raw |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
            }
        }
        None
    }

    fn part(&mut self) -> Option<Option<Range<usize>>> {
        let length = self.varint()?;
        if length == -1 {
            return Some(None);
        }
        let end = self.at.checked_add(usize::try_from(length).ok()?).filter(|end| *end <= self.data.len())?;
        let start = std::mem::replace(&mut self.at, end);
        Some(Some(start..end))
    }
}

fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    while raw >= 0x80 {
        out.push((raw & 0x7f) as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

fn put_part(out: &mut Vec<u8>, part: Option<&[u8]>) {
    put_varint(out, part.map_or(-1, |bytes| i64::try_from(bytes.len()).expect("record within i64")));
    out.extend_from_slice(part.unwrap_or_default());
}

fn i32_at(data: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOBODY: Producer = Producer { id: -1, epoch: -1, sequence: -1 };
    type Owned = (i64, Option<Vec<u8>>, Option<Vec<u8>>);

    fn packed(records: &[Owned]) -> Vec<u8> {
        let borrowed: Vec<Record<'_>> = records
            .iter()
            .map(|(timestamp_ms, key, value)| Record {
                timestamp_ms: *timestamp_ms,
                key: key.as_deref(),
                value: value.as_deref(),
            })
            .collect();
        pack(NOBODY, &borrowed)
    }

    fn some_records() -> impl Strategy<Value = Vec<Owned>> {
        let part = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
        proptest::collection::vec((any::<i64>(), part(), part()), 1..12)
    }

    #[test]
    fn a_batch_carries_the_epoch_that_its_broker_wrote() {
        let mut data = packed(&[(1, None, None)]);
        data[12..16].copy_from_slice(&7i32.to_be_bytes()); // outside of the checksum, since the broker fills it in
        assert_eq!(batch_at(&data, 0).unwrap().unwrap().leader_epoch, 7);
    }

    #[test]
    fn a_payload_holds_as_many_records_as_seven_bytes_each_allow() {
        let mut batch = batch_at(&packed(&[(1, None, None)]), 0).unwrap().unwrap();
        batch.records = 1 << 31;
        let error = records_of(&batch, &vec![0; 1 << 20]).unwrap_err();
        assert_eq!(error, "2147483648 records in the 1048576 bytes of the batch at offset 0");
        batch.records = 3;
        assert_eq!(frames_bytes(&batch, &[0; 21]), Ok(3 * size_of::<Frame>()));
        assert!(frames_bytes(&batch, &[0; 20]).is_err());
    }

    #[test]
    fn a_batch_ends_before_the_last_offset_there_is() {
        let with_base = |base: i64| {
            let mut data = packed(&[(1, None, None), (1, None, None)]);
            data[..8].copy_from_slice(&base.to_be_bytes());
            batch_at(&data, 0).map(|batch| batch.unwrap().last_offset)
        };
        assert_eq!(with_base(i64::MAX - 2), Ok(i64::MAX - 1));
        for base in [i64::MAX - 1, i64::MAX, -1, i64::MIN] {
            assert!(with_base(base).is_err(), "{base}");
        }
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_back(records in some_records()) {
            let data = packed(&records);
            let batch = batch_at(&data, 0).unwrap().unwrap();
            let payload = &data[batch.payload.clone()];
            let part = |range: &Option<Range<usize>>| range.clone().map(|range| payload[range].to_vec());
            let frames = records_of(&batch, payload).unwrap();
            prop_assert_eq!(batch.last_offset + 1, i64::try_from(records.len()).unwrap());
            prop_assert_eq!(batch.leader_epoch, -1);
            for (number, (frame, record)) in frames.iter().zip(&records).enumerate() {
                prop_assert_eq!(frame.offset, i64::try_from(number).unwrap());
                prop_assert_eq!(&(frame.timestamp_ms, part(&frame.key), part(&frame.value)), record);
            }
            prop_assert_eq!(frames.len(), records.len());
        }

        #[test]
        fn a_cut_batch_is_not_there_yet(records in some_records(), cut in any::<prop::sample::Index>()) {
            let data = packed(&records);
            prop_assert!(batch_at(&data[..cut.index(data.len())], 0).unwrap().is_none());
        }

        #[test]
        fn a_flipped_bit_under_the_checksum_is_refused(records in some_records(), bit in any::<prop::sample::Index>()) {
            let mut data = packed(&records);
            let bit = CHECKED_FROM * 8 + bit.index((data.len() - CHECKED_FROM) * 8);
            data[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(batch_at(&data, 0).is_err());
        }

        #[test]
        fn a_count_that_lies_is_refused(records in some_records(), more in 1usize..1 << 31) {
            let data = packed(&records);
            let mut batch = batch_at(&data, 0).unwrap().unwrap();
            let payload = &data[batch.payload.clone()];
            batch.records += more;
            prop_assert!(records_of(&batch, payload).is_err());
            let reserved = frames_bytes(&batch, payload).unwrap_or(0);
            prop_assert!(reserved <= payload.len() / RECORD_BYTES_MIN * size_of::<Frame>());
        }

        #[test]
        fn garbage_is_read_without_harm(head in any::<u32>(), payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut batch = batch_at(&packed(&[(1, None, None)]), 0).unwrap().unwrap();
            batch.records = (head % 300) as usize;
            let _ = (records_of(&batch, &payload), is_abort(&batch, &payload));
        }
    }
}
