#include "misses.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernel.h"
#include "miss_table.h"

namespace aot {

namespace {

constexpr char kVariable[] = "AOT_GEMM_MISSES";
constexpr int64_t kWriteSeconds = 10;
constexpr int32_t kMaxAttempts = 100;  // at exit, 10 ms apart
constexpr int kRefused = -1;           // beside the values of errno
constexpr size_t kSuffixBytes = 16;    // ".partial" and its end
constexpr size_t kMaxPidBytes = 10;    // of the process's id, which takes the place of two bytes

// All of it is under the mutex, but for what is set when the library is loaded.
pthread_mutex_t misses_mutex = PTHREAD_MUTEX_INITIALIZER;
MissTable table;
char pattern[PATH_MAX];       // as the variable says it, made absolute
char path[PATH_MAX];          // with the process's id in the place of %p
char partial[PATH_MAX];       // what is written, then renamed to `path`: so that this is always whole
pid_t owner;                  // the process that `table` and `path` are of
int64_t num_launches;
int32_t num_rows_written;
int64_t written_s;
bool is_refused;  // the file is not ours to write
bool has_warned;

bool is_of_process(const char* at) { return at[0] == '%' && at[1] == 'p'; }

// Says whether the path and its suffix fit, whatever the process's id.
bool fits() {
  size_t num_bytes = std::strlen(pattern) + kSuffixBytes;
  for (const char* at = pattern; *at != '\0'; ++at) num_bytes += is_of_process(at) ? kMaxPidBytes - 2 : 0;
  return num_bytes < sizeof(path);
}

void expand_pattern(pid_t pid) {
  size_t used = 0;
  for (const char* at = pattern; *at != '\0'; ++at) {
    if (is_of_process(at)) {
      used += static_cast<size_t>(std::snprintf(path + used, sizeof(path) - used, "%d", static_cast<int>(pid)));
      ++at;
    } else {
      path[used++] = *at;
    }
  }
  path[used] = '\0';
  std::memcpy(partial, path, used);
  std::strcpy(partial + used, ".partial");
  owner = pid;
}

bool read_variable() {
  const char* value = secure_getenv(kVariable);
  if (value == nullptr || *value == '\0') return false;
  char directory[PATH_MAX] = "";
  // The process may change its directory before the first miss.
  if (*value != '/' && getcwd(directory, sizeof(directory)) == nullptr) directory[0] = '\0';
  const int length =
      std::snprintf(pattern, sizeof(pattern), "%s%s%s", directory, *directory == '\0' ? "" : "/", value);
  if (length < 0 || static_cast<size_t>(length) >= sizeof(pattern) || !fits()) {
    std::fprintf(stderr, "aot_gemm: %s is longer than a path may be; misses are not logged\n", kVariable);
    return false;
  }
  expand_pattern(getpid());
  return true;
}

int64_t now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec;
}

void pause_10_ms() {
  const timespec pause{0, 10'000'000};
  nanosleep(&pause, nullptr);
}

void warn(const char* what, const char* why) {
  if (has_warned) return;
  has_warned = true;
  std::fprintf(stderr, "aot_gemm: %s %s: %s; products are not affected, misses may not be logged\n", what, path, why);
}

// Says why a file that lies where ours is to be written is not one that a killed process of this user left there; null
// where it may be.
const char* find_stranger(const struct stat& found) {
  if (S_ISLNK(found.st_mode)) return "its .partial is a symbolic link";
  if (!S_ISREG(found.st_mode)) return "its .partial is no regular file";
  if (found.st_uid != geteuid()) return "its .partial belongs to another user";
  // One that its writer is renaming or removing at this moment may have none.
  if (found.st_nlink > 1) return "its .partial is a file that has other names too";
  return nullptr;
}

// The file being written, locked: one process writes at a time, and one that died leaves no lock behind. It is always
// one that this process has made: what lies in its place is never opened for its content, but locked, to learn whether
// its writer lives, and removed.
class Partial {
 public:
  Partial() = default;
  ~Partial() {
    if (is_locked_) unlink(partial);
    if (descriptor_ >= 0) close(descriptor_);
  }
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;

  // Gives 0, kRefused, EWOULDBLOCK while another process writes, or what went wrong.
  int open_locked() {
    int error = make();
    if (error == EEXIST) error = remove_left_over();
    if (error != 0 || is_locked_) return error;
    error = make();
    return error == EEXIST ? EWOULDBLOCK : error;
  }

  // Writes the table and puts it in the place of the file.
  int replace_file(bool is_last) {
    const int copy = fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
    FILE* file = copy < 0 ? nullptr : fdopen(copy, "w");
    if (file == nullptr) {
      const int error = errno;
      if (copy >= 0) close(copy);
      return error;
    }
    errno = 0;
    table.write(file);
    const bool is_written = std::fflush(file) == 0 && std::ferror(file) == 0;
    int error = is_written ? 0 : errno != 0 ? errno : EIO;
    // Only at the end is there time to wait for the disk.
    if (error == 0 && is_last && fsync(copy) != 0) error = errno;
    if (error == 0 && rename(partial, path) != 0) error = errno;
    is_locked_ = error != 0;
    std::fclose(file);
    return error;
  }

 private:
  // Makes the file, which must not be there, and locks it. Gives 0, EEXIST, EWOULDBLOCK, or what went wrong.
  int make() {
    descriptor_ = open(partial, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return errno;
    const int error = lock(descriptor_);
    is_locked_ = error == 0;
    if (error != 0 && error != EWOULDBLOCK) unlink(partial);  // a file system without locks
    return error;
  }

  // Gives 0, or EWOULDBLOCK where another process has the lock, or has put another file, or none, in the file's place.
  static int lock(int descriptor) {
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno;
    struct stat locked {};
    struct stat named {};
    if (fstat(descriptor, &locked) != 0) return errno;
    const bool is_named =
        lstat(partial, &named) == 0 && named.st_dev == locked.st_dev && named.st_ino == locked.st_ino;
    return is_named ? 0 : EWOULDBLOCK;
  }

  // Removes the file that a killed process left. Gives 0, kRefused, EWOULDBLOCK, or what went wrong.
  static int remove_left_over() {
    struct stat found {};
    if (lstat(partial, &found) != 0) return errno == ENOENT ? 0 : errno;
    const char* why = find_stranger(found);
    if (why != nullptr) {
      warn("will not write to", why);
      return kRefused;
    }
    // Not to wait for a pipe that has taken its place since.
    const int left_over = open(partial, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (left_over < 0) return errno == ENOENT ? 0 : errno;
    int error = lock(left_over);
    if (error == 0 && unlink(partial) != 0) error = errno;
    close(left_over);
    return error;
  }

  int descriptor_ = -1;
  bool is_locked_ = false;
};

// Reads what other processes and earlier runs have counted. Gives 0, kRefused, or what went wrong.
int read_file() {
  // Not to wait for a pipe.
  const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) {
    table.forget_written();
    return 0;
  }
  if (descriptor < 0) return errno;
  struct stat found {};
  char why[96] = "it is no regular file";
  FILE* file = nullptr;
  if (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode)) file = fdopen(descriptor, "r");
  if (file != nullptr && found.st_size <= MissTable::kMaxBytes) {
    const int32_t line = table.read(file);
    std::fclose(file);
    if (line == 0) return 0;
    std::snprintf(why, sizeof(why), "its line %d is not of a miss log", static_cast<int>(line));
  } else if (file != nullptr) {
    std::fclose(file);
    std::snprintf(why, sizeof(why), "it has more bytes than a miss log");
  } else {
    close(descriptor);
  }
  warn("will not write to", why);
  is_refused = true;
  return kRefused;
}

// Writes the table. Gives 0, kRefused, EWOULDBLOCK while another process writes, or what went wrong.
int write_file(bool is_last) {
  Partial file;
  int error = file.open_locked();
  if (error == 0) error = read_file();
  if (error == 0) error = file.replace_file(is_last);
  if (error == 0) table.settle();
  if (error > 0 && error != EWOULDBLOCK) warn("cannot write", std::strerror(error));
  num_rows_written = table.num_rows();
  written_s = now_s();
  return error;
}

// A forked child starts from nothing: what its parent has counted, its parent writes.
void adopt(pid_t pid) {
  table.clear();
  expand_pattern(pid);
  num_launches = 0;
  num_rows_written = 0;
}

// Writes often while there is news, rarely later: at the launches 1, 2, 4, 8, ..., when the log has grown by an eighth,
// and every ten seconds.
bool is_due() {
  const bool is_power_of_two = (num_launches & (num_launches - 1)) == 0;
  const int32_t num_new = table.num_rows() - num_rows_written;
  return is_power_of_two || (num_new > 0 && num_new * 8 >= num_rows_written) ||
         now_s() - written_s >= kWriteSeconds;
}

// Writes what is pending when the process exits or the library is unloaded.
struct LastWrite {
  ~LastWrite() {
    if (!kLogsMisses) return;
    for (int32_t i = 0; pthread_mutex_trylock(&misses_mutex) != 0; ++i) {
      if (i == kMaxAttempts) return;
      pause_10_ms();
    }
    if (owner == getpid() && !is_refused && table.has_pending()) {
      for (int32_t i = 0; write_file(true) == EWOULDBLOCK && i < kMaxAttempts; ++i) pause_10_ms();
    }
    pthread_mutex_unlock(&misses_mutex);
  }
};
const LastWrite last_write;

}  // namespace

const bool kLogsMisses = read_variable();

void log_miss(const aot_gemm_selection_t& selection) {
  if (selection.k == 0) return;  // zeros, which no kernel need be tuned for
  if (selection.num_groups > 1) return;  // the log has no place for the number of products
  const bool is_grid = selection.tier == AOT_GEMM_TIER_GRID;
  const Miss miss = is_grid ? Miss::kGrid : selection.layout < 0 ? Miss::kStrided : Miss::kUnaligned;
  pthread_mutex_lock(&misses_mutex);
  const pid_t pid = getpid();
  if (pid != owner) adopt(pid);
  if (!is_refused) {
    ++num_launches;
    const int32_t layout = selection.layout < 0 ? 0 : selection.layout;
    const int32_t operation = kKernels[selection.kernel].operation;
    table.count(MissKey::of(miss, operation, layout, selection.n, selection.k), selection.m);
    if (is_due()) write_file(false);
  }
  pthread_mutex_unlock(&misses_mutex);
}

}  // namespace aot

const char* aot_gemm_misses_file() { return aot::kLogsMisses ? aot::path : nullptr; }
