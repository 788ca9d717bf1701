//! Frames of file topics and Kafka batches. Checksums are corrected first, so that more than the checksum
//! check is tested.

use streamlearn_wire::checksum::crc32c;
use streamlearn_wire::frame::kafka::{self, batch_at, frames_bytes, is_abort, records_of};
use streamlearn_wire::frame::{Frame, HEAD_BYTES, Limits, Stop, index, scan};

const FRAME_BYTES_MAX: usize = 1 << 16;

pub fn frames(bytes: &[u8]) {
    let mut data = bytes.to_vec();
    let mut at = 0;
    while let Some(head) = data.get(at..at + 8) {
        let end = at + 8 + u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(frame) = data.get_mut(at..end) else { break };
        let sum = crc32c(crc32c(0, &frame[..4]), &frame[8..]);
        frame[4..8].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
    let wide = Limits {
        offset_min: 0,
        records_max: usize::MAX,
        bytes_max: usize::MAX,
        frame_bytes_max: FRAME_BYTES_MAX,
    };
    for data in [bytes, &data] {
        let all = scan(data, wide);
        assert!(all.end <= data.len() && all.stop != Stop::Limit);
        let mut last = -1;
        for frame in &all.frames {
            assert!(last < frame.offset && frame.end <= all.end);
            check_inside(frame, data);
            last = frame.offset;
        }
        let (blocks, end, next, stop) = index(data, 64, FRAME_BYTES_MAX);
        assert_eq!((end, stop), (all.end, all.stop));
        assert_eq!(next, if all.frames.is_empty() { -1 } else { last + 1 });
        assert!(blocks.iter().all(|block| block.position + HEAD_BYTES <= end));
        let few = scan(data, Limits { offset_min: 3, records_max: 2, bytes_max: 100, ..wide });
        assert!(few.frames.len() <= 2 && few.end <= all.end);
    }
}

pub fn batches(bytes: &[u8]) {
    let mut data = bytes.to_vec();
    let mut at = 0;
    while data.len() >= at + kafka::HEAD_BYTES {
        let length = i32::from_be_bytes(data[at + 8..at + 12].try_into().expect("four bytes"));
        let end = usize::try_from(length).ok().and_then(|length| length.checked_add(at + 12));
        let Some(batch) = end.and_then(|end| data.get_mut(at..end)).filter(|batch| batch.len() > 21) else {
            break;
        };
        let sum = crc32c(0, &batch[21..]);
        batch[17..21].copy_from_slice(&sum.to_be_bytes());
        at += batch.len();
    }
    for data in [bytes, &data] {
        let mut at = 0;
        while let Ok(Some(batch)) = batch_at(data, at) {
            assert!(at < batch.payload.end && batch.payload.end <= data.len());
            at = batch.payload.end;
            assert!(batch.base_offset <= batch.last_offset && batch.last_offset < i64::MAX);
            let payload = &data[batch.payload.clone()];
            let _ = is_abort(&batch, payload);
            let Ok(frames) = records_of(&batch, payload) else { continue };
            assert_eq!(frames_bytes(&batch, payload), Ok(frames.len() * size_of::<Frame>()));
            for frame in &frames {
                assert!((batch.base_offset..=batch.last_offset).contains(&frame.offset));
                check_inside(frame, payload);
            }
        }
    }
}

fn check_inside(frame: &Frame, data: &[u8]) {
    for part in [&frame.key, &frame.value].into_iter().flatten() {
        assert!(data.get(part.clone()).is_some() && part.end <= frame.end);
    }
}
