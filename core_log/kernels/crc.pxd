# CRC-32 (zlib's and RocketMQ's polynomial) in C. Three ways, one value:
#
# * fold     carry-less multiplication (PCLMULQDQ), 16 to 64 bytes a step: x86-64 with GCC or Clang,
#            and only if the processor that runs it says so. About a tenth of zlib's time.
# * slices   eight tables, eight bytes a step: everywhere else, and below 16 bytes.
# * bytes    the last up to three of those.
#
# The build never looks at the processor that it runs on. The theory of the fold: bytes are the
# coefficients of a polynomial over GF(2), and a block can be replaced by its product with
# x^distance mod P further down, so four lanes of 128 bits walk through the data and are folded into
# one at the end; a Barrett reduction brings the last 128 bits down to 32. The constants are
# x^n mod P, bits reversed, for the distances that the steps need.
#
# Whoever cimports this gets tables of its own: call `crc_prepare()` once at import.

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t polymq_crc_table[8][256];
    static int polymq_crc_folds = 0;

    static uint32_t polymq_crc_slices(uint32_t crc, const uint8_t *at, size_t size) {
        while (size >= 8) {
            uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16
                                  | (uint32_t)at[3] << 24);
            crc = polymq_crc_table[7][low & 255] ^ polymq_crc_table[6][low >> 8 & 255]
                ^ polymq_crc_table[5][low >> 16 & 255] ^ polymq_crc_table[4][low >> 24]
                ^ polymq_crc_table[3][at[4]] ^ polymq_crc_table[2][at[5]]
                ^ polymq_crc_table[1][at[6]] ^ polymq_crc_table[0][at[7]];
            at += 8;
            size -= 8;
        }
        if (size >= 4) {
            uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16
                                  | (uint32_t)at[3] << 24);
            crc = polymq_crc_table[3][low & 255] ^ polymq_crc_table[2][low >> 8 & 255]
                ^ polymq_crc_table[1][low >> 16 & 255] ^ polymq_crc_table[0][low >> 24];
            at += 4;
            size -= 4;
        }
        while (size--) crc = crc >> 8 ^ polymq_crc_table[0][(crc ^ *at++) & 255];
        return crc;
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>
    #define POLYMQ_FOLD_TARGET __attribute__((target("pclmul,sse4.1")))

    POLYMQ_FOLD_TARGET static inline __m128i polymq_fold(__m128i lane, __m128i by, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
        __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    #define POLYMQ_LOAD(place) _mm_loadu_si128((const __m128i *)(place))

    /* For the last 1 to 15 bytes: read from here at `size` and at 16 + `size`, the bytes move the
       lane down, or up, by that many places; 128 empties a place. */
    static const uint8_t polymq_moves[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    };

    /* size >= 16 */
    POLYMQ_FOLD_TARGET static uint32_t polymq_crc_fold(uint32_t crc, const uint8_t *at,
                                                       size_t size) {
        const __m128i by_512 = _mm_set_epi64x(0x1c6e41596LL, 0x154442bd4LL);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009eLL, 0x1751997d0LL);
        const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124LL);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641LL, 0x1db710641LL);
        const __m128i low_32 = _mm_set_epi32(0, 0, 0, -1);
        __m128i lane = _mm_xor_si128(POLYMQ_LOAD(at), _mm_cvtsi32_si128((int)crc));
        __m128i quotient;
        if (size >= 64) {
            __m128i second = POLYMQ_LOAD(at + 16);
            __m128i third = POLYMQ_LOAD(at + 32);
            __m128i fourth = POLYMQ_LOAD(at + 48);
            at += 64;
            size -= 64;
            while (size >= 64) {
                lane = polymq_fold(lane, by_512, POLYMQ_LOAD(at));
                second = polymq_fold(second, by_512, POLYMQ_LOAD(at + 16));
                third = polymq_fold(third, by_512, POLYMQ_LOAD(at + 32));
                fourth = polymq_fold(fourth, by_512, POLYMQ_LOAD(at + 48));
                at += 64;
                size -= 64;
            }
            lane = polymq_fold(lane, by_128, second);
            lane = polymq_fold(lane, by_128, third);
            lane = polymq_fold(lane, by_128, fourth);
        } else {
            at += 16;
            size -= 16;
        }
        while (size >= 16) {
            lane = polymq_fold(lane, by_128, POLYMQ_LOAD(at));
            at += 16;
            size -= 16;
        }
        if (size) {
            /* The lane and the rest are 16 + size bytes: fold the first `size` of them into the
               last 16. The rest is read with the bytes before it, which are masked away. */
            const __m128i out = POLYMQ_LOAD(polymq_moves + size);
            const __m128i up = POLYMQ_LOAD(polymq_moves + 16 + size);
            const __m128i rest = POLYMQ_LOAD(at + size - 16);
            lane = polymq_fold(_mm_shuffle_epi8(lane, out), by_128,
                               _mm_blendv_epi8(_mm_shuffle_epi8(lane, up), rest, up));
        }
        /* 128 bits to 96, to 64, to 32. */
        lane = _mm_xor_si128(_mm_srli_si128(lane, 8), _mm_clmulepi64_si128(lane, by_128, 0x10));
        lane = _mm_xor_si128(_mm_srli_si128(lane, 4),
                             _mm_clmulepi64_si128(_mm_and_si128(lane, low_32), by_64, 0x00));
        quotient = _mm_clmulepi64_si128(_mm_and_si128(lane, low_32), barrett, 0x10);
        quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(lane, quotient), 1);
    }

    static int polymq_can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    static uint32_t polymq_crc_fold(uint32_t crc, const uint8_t *at, size_t size) {
        return polymq_crc_slices(crc, at, size);
    }
    static int polymq_can_fold(void) { return 0; }
    #endif

    static void polymq_crc_prepare(int may_fold) {
        uint32_t index;
        int table;
        for (index = 0; index < 256; index++) {
            uint32_t value = index;
            int bit;
            for (bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
            polymq_crc_table[0][index] = value;
        }
        for (table = 1; table < 8; table++)
            for (index = 0; index < 256; index++) {
                uint32_t value = polymq_crc_table[table - 1][index];
                polymq_crc_table[table][index] = value >> 8 ^ polymq_crc_table[0][value & 255];
            }
        polymq_crc_folds = may_fold && polymq_can_fold();
    }

    static inline uint32_t polymq_crc(uint32_t value, const uint8_t *at, size_t size) {
        value = ~value;
        if (size >= 16 && polymq_crc_folds) return ~polymq_crc_fold(value, at, size);
        return ~polymq_crc_slices(value, at, size);
    }
    """
    int crc_folds "polymq_crc_folds"
    void crc_prepare "polymq_crc_prepare"(int may_fold) nogil
    uint32_t crc_update "polymq_crc"(uint32_t value, const uint8_t *at, size_t size) nogil


cdef inline uint8_t entry_check(const uint8_t *entry) noexcept nogil:
    """The check of a private index entry, from its first 31 bytes (see layout.py)."""
    cdef uint32_t value = crc_update(0, entry, 31)
    value ^= value >> 16
    return <uint8_t>(value ^ value >> 8)
