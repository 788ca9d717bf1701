//! Checksums: CRC32C of frames and files, CRC-64-AVRO of schemas.

/// CRC32C of `data`, continued from `seed` (0 to start).
pub fn crc32c(seed: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, data)
}

/// The Rabin polynomial of the Avro specification, which is also the fingerprint of empty input.
const RABIN_EMPTY: u64 = 0xC15D_213A_A4D7_A795;

const RABIN_TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (RABIN_EMPTY & (value & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// CRC-64-AVRO of a schema in canonical form: the fingerprint of Avro's single-object framing.
pub fn schema_fingerprint(canonical: &[u8]) -> u64 {
    canonical
        .iter()
        .fold(RABIN_EMPTY, |value, byte| (value >> 8) ^ RABIN_TABLE[usize::from((value as u8) ^ byte)])
}
