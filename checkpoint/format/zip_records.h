// Signatures and fields of the records of ZIP archives, from the ZIP specification (APPNOTE.TXT).
#pragma once
#include "base/types.h"

namespace mcpp::zip {

inline constexpr u32 kLocalSignature = 0x04034b50;  ///< header before the bytes of a file
inline constexpr u32 kEntrySignature = 0x02014b50;  ///< header of a file in the directory
inline constexpr u32 kEndSignature = 0x06054b50;
inline constexpr u32 kEnd64Signature = 0x06064b50;
inline constexpr u32 kLocatorSignature = 0x07064b50;  ///< location of the ZIP64 end record

// Sizes of the records without names, fields and comments.
inline constexpr u64 kLocalSize = 30, kEntrySize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;

/// Value of a 32-bit size or offset that is stored in the ZIP64 field instead. kIn64BitCount: the same for a number of
/// entries, which is stored in the ZIP64 end record.
inline constexpr u32 kIn64BitField = 0xffffffff;
inline constexpr u16 kIn64BitCount = 0xffff;
inline constexpr u16 kZip64Field = 1;     ///< tag of the field with 64-bit sizes and offsets
inline constexpr u16 kZip64Version = 45;  ///< version of the specification with ZIP64

}  // namespace mcpp::zip
