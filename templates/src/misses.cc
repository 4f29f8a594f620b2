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

#include "miss_table.h"

namespace aot {

namespace {

constexpr char kVariable[] = "AOT_GEMM_MISSES";
constexpr int64_t kWriteSeconds = 10;
constexpr int32_t kMaxAttempts = 100;  // at exit, 10 ms apart
constexpr int kRefused = -1;           // beside the values of errno

// All of it is under the mutex, but for what is set when the library is loaded.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
MissTable table;
char pattern[PATH_MAX];       // as the variable says it, made absolute
char path[PATH_MAX];          // with the process's id in the place of %p
char partial[PATH_MAX + 16];  // what is written, then renamed to `path`: so that this is always whole
pid_t owner;                  // the process that `table` and `path` are of
int64_t num_launches;
int32_t num_rows_written;
int64_t written_s;
bool is_refused;  // the file is not ours to write
bool has_warned;

void expand_pattern(pid_t pid) {
  size_t used = 0;
  const char* at = pattern;
  while (*at != '\0' && used + 1 < sizeof(path)) {
    if (at[0] == '%' && at[1] == 'p') {
      const int length = std::snprintf(path + used, sizeof(path) - used, "%d", static_cast<int>(pid));
      used += static_cast<size_t>(length);
      at += 2;
    } else {
      path[used++] = *at++;
    }
  }
  path[used < sizeof(path) ? used : sizeof(path) - 1] = '\0';
  std::snprintf(partial, sizeof(partial), "%s.partial", path);
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
  if (length < 0 || static_cast<size_t>(length) + 16 >= sizeof(pattern)) {
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

// The file being written, locked: one process writes at a time, and one that died leaves no lock behind.
class Partial {
 public:
  Partial() = default;
  ~Partial() {
    if (is_locked_) unlink(partial);
    if (descriptor_ >= 0) close(descriptor_);
  }
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;

  // Gives 0, EWOULDBLOCK while another process writes, or what went wrong.
  int open_locked() {
    descriptor_ = open(partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) != 0) return errno;
    struct stat locked {};
    struct stat named {};
    if (fstat(descriptor_, &locked) != 0) return errno;
    // Another process may have renamed the file between the two calls; then the lock is of no use.
    is_locked_ = stat(partial, &named) == 0 && named.st_dev == locked.st_dev && named.st_ino == locked.st_ino;
    return is_locked_ ? 0 : EWOULDBLOCK;
  }

  // Writes the table and puts it in the place of the file.
  int replace_file(bool is_last) {
    if (ftruncate(descriptor_, 0) != 0) return errno;
    const int copy = fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
    FILE* file = copy < 0 ? nullptr : fdopen(copy, "w");
    if (file == nullptr) return errno;
    table.write(file);
    const bool is_written = std::fflush(file) == 0 && std::ferror(file) == 0;
    int error = is_written ? 0 : errno;
    // Only at the end is there time to wait for the disk.
    if (error == 0 && is_last && fsync(copy) != 0) error = errno;
    if (error == 0 && rename(partial, path) != 0) error = errno;
    is_locked_ = error != 0;
    std::fclose(file);
    return error;
  }

 private:
  int descriptor_ = -1;
  bool is_locked_ = false;
};

// Reads what other processes and earlier runs have counted. Gives 0, kRefused, or what went wrong.
int read_file() {
  struct stat found {};
  if (stat(path, &found) != 0) {
    if (errno != ENOENT) return errno;
    table.forget_written();
    return 0;
  }
  char why[96] = "it is no regular file";
  if (S_ISREG(found.st_mode)) {
    FILE* file = std::fopen(path, "re");
    if (file == nullptr) return errno;
    const int32_t line = table.read(file);
    std::fclose(file);
    if (line == 0) return 0;
    std::snprintf(why, sizeof(why), "its line %d is not of a miss log", static_cast<int>(line));
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
    for (int32_t i = 0; pthread_mutex_trylock(&mutex) != 0; ++i) {
      if (i == kMaxAttempts) return;
      pause_10_ms();
    }
    if (owner == getpid() && !is_refused && table.has_pending()) {
      for (int32_t i = 0; write_file(true) == EWOULDBLOCK && i < kMaxAttempts; ++i) pause_10_ms();
    }
    pthread_mutex_unlock(&mutex);
  }
};
const LastWrite last_write;

}  // namespace

const bool kLogsMisses = read_variable();

void log_miss(int32_t dtype, const aot_gemm_selection_t& selection) {
  if (selection.k == 0) return;  // zeros, which no kernel need be tuned for
  const bool is_grid = selection.tier == AOT_GEMM_TIER_GRID;
  const Miss miss = is_grid ? Miss::kGrid : selection.layout < 0 ? Miss::kStrided : Miss::kUnaligned;
  pthread_mutex_lock(&mutex);
  const pid_t pid = getpid();
  if (pid != owner) adopt(pid);
  if (!is_refused) {
    ++num_launches;
    table.count({miss, dtype, selection.layout < 0 ? 0 : selection.layout, selection.n, selection.k}, selection.m);
    if (is_due()) write_file(false);
  }
  pthread_mutex_unlock(&mutex);
}

}  // namespace aot

const char* aot_gemm_misses_file() { return aot::kLogsMisses ? aot::path : nullptr; }
