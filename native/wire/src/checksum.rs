//! CRC32C, the checksum of every frame and file.

/// CRC32C of `data`, going on from `seed` (0 to start).
pub fn crc32c(seed: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, data)
}
