//! Push: keys with their gradients, and the counts of the updated rows.

use std::borrow::Cow;

use streamlearn_table::{Admit, Pushed};

use super::fields::Fields;
use super::pull::encoding_of;
use crate::epoch::Epoch;
use crate::numbers::{Encoding, bytes_of, numbers_of};
use crate::refusal::Refusal;

/// Bytes before the keys.
pub(crate) const PUSH_HEAD_BYTES: usize = 48;
const HAS_COUNTS: u8 = 1;

/// Gradients for one table; no key repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct PushAsk<'a> {
    /// The client's epoch.
    pub epoch: Epoch,
    /// The table's number.
    pub table: u16,
    /// The gradients' encoding.
    pub encoding: Encoding,
    /// The push's sequence number at this shard.
    pub sequence: u64,
    /// Table time, in milliseconds.
    pub now_ms: i64,
    /// Multiplies the optimizer's learning rate.
    pub rate_scale: f32,
    /// The columns.
    pub columns: Columns<'a>,
}

/// The columns of a push.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns<'a> {
    /// The keys.
    pub keys: Cow<'a, [u64]>,
    /// Admission thresholds by runs of the keys.
    pub admit: Cow<'a, [Admit]>,
    /// How often each key was seen; `None` means once.
    pub counts: Option<Cow<'a, [u32]>>,
    /// One gradient row for each key, in the bytes of the encoding.
    pub gradients: Cow<'a, [u8]>,
}

/// The reply to a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushReply(pub Pushed);

impl<'a> PushAsk<'a> {
    /// Appends the encoded payload.
    pub fn append(&self, payload: &mut Vec<u8>) {
        let Columns { keys, admit, counts, gradients } = &self.columns;
        payload.reserve(PUSH_HEAD_BYTES + 12 * keys.len() + 8 + 8 * admit.len() + gradients.len());
        payload.extend_from_slice(&self.epoch.run.to_le_bytes());
        payload.extend_from_slice(&self.epoch.recovery.to_le_bytes());
        payload.extend_from_slice(&self.table.to_le_bytes());
        payload.extend_from_slice(&[self.encoding as u8, if counts.is_some() { HAS_COUNTS } else { 0 }]);
        payload.extend_from_slice(&self.sequence.to_le_bytes());
        payload.extend_from_slice(&self.now_ms.to_le_bytes());
        payload.extend_from_slice(&self.rate_scale.to_le_bytes());
        payload.extend_from_slice(&(keys.len() as u32).to_le_bytes());
        payload.extend_from_slice(&(admit.len() as u32).to_le_bytes());
        payload.extend_from_slice(&[0; 4]);
        payload.extend_from_slice(bytes_of(keys));
        for run in admit.iter() {
            payload.extend_from_slice(&(run.end as u32).to_le_bytes());
            payload.extend_from_slice(&run.threshold.to_le_bytes());
        }
        if let Some(counts) = counts {
            payload.extend_from_slice(bytes_of(counts));
            payload.extend_from_slice(&[0; 4][..4 * (counts.len() % 2)]);
        }
        payload.extend_from_slice(gradients);
    }

    /// Decodes a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a push", payload);
        let (epoch, table, encoding, flags) = (fields.epoch()?, fields.u16()?, fields.u8()?, fields.u8()?);
        let (sequence, now_ms, rate_scale) = (fields.u64()?, fields.i64()?, fields.f32()?);
        let (count, runs, zero) = (fields.u32()? as usize, fields.u32()? as usize, fields.u32()?);
        let encoding = encoding_of(&fields, encoding)?;
        if flags & !HAS_COUNTS != 0 || zero != 0 {
            return Err(
                fields.bad(format!("unknown flags {flags:#04x} or a nonzero reserved field {zero:#010x}"))
            );
        }
        let keys = numbers_of(fields.take(count * 8)?);
        let run_of = |bytes: &[u8]| {
            let numbers = numbers_of::<u32>(bytes);
            Admit { end: numbers[0] as usize, threshold: numbers[1] }
        };
        let admit: Vec<Admit> = fields.take(runs * 8)?.chunks_exact(8).map(run_of).collect();
        let counts = match flags {
            HAS_COUNTS => {
                let counts = numbers_of(fields.take(4 * count)?);
                fields.take(4 * (count % 2))?;
                Some(counts)
            }
            _ => None,
        };
        let gradients = Cow::Borrowed(fields.rest());
        let columns = Columns { keys, admit: Cow::Owned(admit), counts, gradients };
        Ok(Self { epoch, table, encoding, sequence, now_ms, rate_scale, columns })
    }
}

impl PushReply {
    /// Encodes the payload.
    pub fn to_payload(&self) -> Vec<u8> {
        let Pushed { learned, created, waiting } = self.0;
        [learned, created, waiting].iter().flat_map(|&count| (count as u64).to_le_bytes()).collect()
    }

    /// Decodes a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a push's reply", payload);
        let mut count = || fields.u64().map(|count| count as usize);
        let pushed = Pushed { learned: count()?, created: count()?, waiting: count()? };
        fields.end()?;
        Ok(Self(pushed))
    }
}
