// Transfer of one rank's part of a local checkpoint, a directory of a few files, to another rank, through buffers in
// host memory.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/communicator.h"

namespace mcpp {

/// Names and sizes of the files of a part. It is sent as bytes before the files, so it must be trivially copyable.
struct PartHeader {
  static constexpr std::size_t kFiles = 3;  ///< manifest, its checksum, and the file with the shards
  std::array<i64, kFiles> bytes{};          ///< size of each file; 0: the part has no such file
  std::array<char, 64> shards_name{};       ///< name of the file with the shards, padded with zeros
  i64 is_readable = 0;                      ///< 0: the sender cannot read the part, and sends no files

  /// Returns the name of a file. Throws BadInput if the name in the header is not the name of a file in a directory.
  std::string name(std::size_t file) const;
};

/// Files of a part in host memory.
class PartFiles {
 public:
  /// Prepares for the files of a part that is received with this header.
  explicit PartFiles(PartHeader header) : header_(header) {}
  /// Reads the header of a part. If the part is damaged or does not exist, the header states that it is not readable.
  explicit PartFiles(const Path& part);

  const PartHeader& header() const { return header_; }
  bool is_readable() const { return header_.is_readable != 0; }
  /// Allocates the buffers. Throws OutOfMemory if the host has too little memory.
  void allocate();
  /// Allocates the buffers and reads the files of a part. Returns false if a file cannot be read completely; its buffer
  /// then has unspecified contents, whose checksum is wrong.
  bool read(const Path& part);
  /// Writes the files to a new directory and makes them durable. Throws BadInput, with the bytes needed and free, if
  /// there is not enough space.
  void write(const Path& directory) const;
  /// Returns the buffers of the files with contents, in the order of the header.
  std::vector<Tensor>& buffers() { return buffers_; }

 private:
  PartHeader header_;
  CpuDevice host_;
  std::vector<Tensor> buffers_;
};

/// Sends a part.
class PartSend {
 public:
  /// Sends the header; does not block. `files` may be sent to several ranks.
  PartSend(std::shared_ptr<PartFiles> files, Communicator& group, int destination);
  /// Starts to send the buffers, which must not be changed until wait() returns.
  void start();
  /// Waits until the buffers may be changed.
  void wait();

 private:
  std::shared_ptr<PartFiles> files_;
  Communicator& group_;
  int destination_;
  std::vector<Work> works_;
};

/// Receives a part into a new directory.
class PartReceive {
 public:
  /// Waits for the header. Creates nothing.
  PartReceive(Path directory, Communicator& group, int source);
  /// Removes the directory, unless publish() has made it visible.
  ~PartReceive();
  PartReceive(const PartReceive&) = delete;
  PartReceive& operator=(const PartReceive&) = delete;

  const Path& directory() const { return directory_; }
  /// Allocates the buffers and checks that the directory's file system has enough space. May run in any thread. Throws
  /// like PartFiles::allocate() and write().
  void reserve();
  /// Starts to receive the buffers.
  void start();
  /// Waits until all buffers are received.
  void wait();
  /// Writes the directory, durably, and verifies all checksums. Returns the problems, "" if the part is intact. May run
  /// in any thread.
  std::string write_and_verify();
  /// Makes the directory visible as `part` (publish_part()). May run in any thread.
  void publish(const Path& part) const;

 private:
  Path directory_;
  Communicator& group_;
  int source_;
  PartFiles files_;
  std::vector<Work> works_;
};

/// Renames `directory` to `part`, which it replaces, and updates `latest` of its folder unless that names a newer one.
/// Durable when it returns. Throws BadInput if the directory cannot be renamed.
void publish_part(const Path& directory, const Path& part);

/// Returns the name of the folder of a rank's part, "rank_00003-of-00016", or of its copy on another node,
/// "replica_00003-of-00016".
std::string part_folder_name(int rank, int ranks, bool is_replica);

}  // namespace mcpp
