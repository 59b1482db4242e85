// Pages: addresses that take memory only where something lies, and how much that is. A page has 4 KiB on x86-64, and 4, 16 or 64 KiB on
// Arm. The arithmetic takes the bytes of a page, so that a test can give those of another machine.
#pragma once

#include <algorithm>
#include <cstddef>

namespace edgekv {

size_t page_bytes(); // of this machine

extern const bool gives_pages; // on systems that give addresses without memory, and take memory back

// n bytes of addresses, which begin at a page, and take memory where they are written to. Throws std::bad_alloc.
char * reserve_pages(size_t n);
void   free_pages(char * begin, size_t n);

// Give the memory of whole pages back; the addresses stay.
void drop_pages(char * begin, size_t n);

// Tell the system that nobody needs what lies in the whole pages of [begin, end), of memory that any allocator gave. It takes them back
// at once or when it is short, and what they held is lost. The addresses stay good.
void return_pages(char * begin, char * end);

// The most memory that n stretches of so many bytes take, wherever they begin.
size_t most_bytes(size_t n_bytes, size_t n, size_t page);

struct Stretch {
    size_t begin;
    size_t end; // as `begin` where it is empty
};

// Of n parts of so many bytes, one behind another, one is to go. Return the bytes of its pages, without those that another part lies in
// which is there. A page may hold many parts.
template <class IsThere>
Stretch pages_of_part(size_t number, size_t n_bytes, size_t n, size_t page, const IsThere & is_there) {
    const auto any = [&](size_t from, size_t to) {
        while (from < to && !is_there(from)) {
            ++from;
        }
        return from < to;
    };
    const size_t begin = number * n_bytes, end = begin + n_bytes;
    size_t       first = begin / page * page, last = (end + page - 1) / page * page;
    if (any(first / n_bytes, number)) {
        first = (begin + page - 1) / page * page;
    }
    if (any(number + 1, std::min(n, (last + n_bytes - 1) / n_bytes))) {
        last = end / page * page;
    }
    return { first, std::max(first, last) };
}

} // namespace edgekv
