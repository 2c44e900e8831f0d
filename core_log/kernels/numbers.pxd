# Big-endian numbers in memory, byte by byte: compilers make one load or store of it.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef inline void put16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void put64(uint8_t *at, uint64_t value) noexcept nogil:
    put32(at, <uint32_t>(value >> 32))
    put32(at + 4, <uint32_t>value)


cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    return (
        <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]
    )


cdef inline int64_t get64(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t>get32(at) << 32 | get32(at + 4))
