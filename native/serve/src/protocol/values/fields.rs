//! Fields: reads the fields of a protobuf message in place. Knows the wire format, and no message.

/// The value of a field, as the wire format encodes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    /// A variable-length integer.
    Varint(u64),
    /// Eight bytes.
    Eight([u8; 8]),
    /// A text, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes.
    Four([u8; 4]),
}

/// The bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn;

/// The fields of a message in their order.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

/// Decodes the integer at the start of `bytes`, and returns it with the rest.
#[inline]
pub fn varint(bytes: &[u8]) -> Result<(u64, &[u8]), Torn> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        if at == 9 && byte > 1 {
            return Err(Torn);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok((value, &bytes[at + 1..]));
        }
    }
    Err(Torn)
}

impl<'a> Fields<'a> {
    #[inline]
    fn read(&mut self) -> Result<(u32, Field<'a>), Torn> {
        let (key, rest) = varint(self.0)?;
        let number = u32::try_from(key >> 3).map_err(|_| Torn)?;
        if number == 0 || number >= 1 << 29 {
            return Err(Torn);
        }
        let (field, rest) = match key & 7 {
            0 => varint(rest).map(|(value, rest)| (Field::Varint(value), rest))?,
            1 => rest.split_first_chunk().map(|(value, rest)| (Field::Eight(*value), rest)).ok_or(Torn)?,
            2 => {
                let (bytes, rest) = varint(rest)?;
                let bytes = usize::try_from(bytes).map_err(|_| Torn)?;
                rest.split_at_checked(bytes).map(|(value, rest)| (Field::Bytes(value), rest)).ok_or(Torn)?
            }
            5 => rest.split_first_chunk().map(|(value, rest)| (Field::Four(*value), rest)).ok_or(Torn)?,
            // Groups are deprecated and not supported.
            _ => return Err(Torn),
        };
        self.0 = rest;
        Ok((number, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), Torn>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.0 = &[];
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_kind_are_read() {
        let bytes = [&[0x08, 0x96, 0x01][..], &[0x12, 2, b'a', b'b'], &[0x1d, 1, 2, 3, 4]].concat();
        let read: Vec<_> = Fields(&bytes).collect();
        let expected =
            [(1, Field::Varint(150)), (2, Field::Bytes(b"ab")), (3, Field::Four([1, 2, 3, 4]))].map(Ok);
        assert_eq!(read, expected);
        assert_eq!(
            Fields(&[0x09, 1, 2, 3, 4, 5, 6, 7, 8]).next(),
            Some(Ok((1, Field::Eight([1, 2, 3, 4, 5, 6, 7, 8]))))
        );
    }

    #[test]
    fn what_is_cut_or_lies_about_its_length_is_torn() {
        for torn in [&[0x08][..], &[0x08, 0x80], &[0x12, 3, 1], &[0x00, 1], &[0x0b], &[0x0d, 1], &[0x09, 1]] {
            assert_eq!(Fields(torn).collect::<Vec<_>>(), [Err(Torn)], "{torn:?}");
        }
        assert_eq!(varint(&[0xff; 11]), Err(Torn));
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(varint(&max), Ok((u64::MAX, &[][..])));
    }
}
