// Pages of 4, 16 and 64 KiB: what parts of a weight take at most, and which pages go with a part, by counting them one by one.
#include "check.h"
#include "hooks/pages.h"

#include <algorithm>
#include <initializer_list>
#include <random>
#include <set>
#include <vector>

using namespace edgekv;

namespace {

constexpr size_t kib = 1024;

// A model of parts that lie one behind another in pages: parts come and go, and so do the pages that they touch.
struct Parts {
    Parts(size_t n_bytes, size_t n, size_t page) : n_bytes(n_bytes), page(page), is_there(n) {}

    void take(size_t number) {
        is_there[number] = true;
        each_page(number, [&](size_t i) { pages.insert(i); });
    }
    void drop(size_t number) {
        const Stretch gone = pages_of_part(number, n_bytes, is_there.size(), page, [&](size_t i) { return is_there[i]; });
        is_there[number] = false;
        CHECK(gone.begin <= gone.end && gone.begin % page == 0 && gone.end % page == 0);
        for (size_t i = gone.begin / page; i < gone.end / page; ++i) {
            pages.erase(i);
        }
    }
    template <class F> void each_page(size_t number, const F & f) const {
        for (size_t i = number * n_bytes / page; i <= ((number + 1) * n_bytes - 1) / page; ++i) {
            f(i);
        }
    }
    // The pages are those of the parts that are there: none is lost, and none is left.
    bool agrees() const {
        std::set<size_t> wanted;
        for (size_t number = 0; number < is_there.size(); ++number) {
            if (is_there[number]) {
                each_page(number, [&](size_t i) { wanted.insert(i); });
            }
        }
        return pages == wanted;
    }

    size_t            n_bytes, page;
    std::vector<bool> is_there;
    std::set<size_t>  pages;
};

void test_parts_that_come_and_go(size_t n_bytes, size_t page) {
    std::mt19937 random(7);
    Parts        parts(n_bytes, 24, page);
    size_t       n_there = 0;
    for (int step = 0; step < 400; ++step) {
        const size_t number = random() % parts.is_there.size();
        if (parts.is_there[number]) {
            parts.drop(number);
            --n_there;
        } else {
            parts.take(number);
            ++n_there;
        }
        if (!CHECK(parts.agrees()) || !CHECK(parts.pages.size() * page <= most_bytes(n_bytes, n_there, page))) {
            std::fprintf(stderr, "  parts of %zu bytes, pages of %zu\n", n_bytes, page);
            return;
        }
    }
}

void test_most_bytes(size_t n_bytes, size_t page) {
    size_t most = 0;
    for (size_t begin = 0; begin < page; ++begin) { // wherever it begins in a page
        most = std::max(most, ((begin + n_bytes - 1) / page + 1) * page);
    }
    const size_t told = most_bytes(n_bytes, 1, page);
    CHECK(most <= told && told <= most + page);
    CHECK(most_bytes(n_bytes, 3, page) == 3 * told);
    CHECK(most_bytes(n_bytes, 0, page) == 0);
}

void test_this_machine() {
    CHECK(page_bytes() >= 4 * kib && (page_bytes() & (page_bytes() - 1)) == 0);
    if (!gives_pages) {
        return;
    }
    const size_t n     = 4 * page_bytes();
    char *       begin = reserve_pages(n);
    begin[page_bytes() - 1] = begin[page_bytes()] = 1; // a byte of each of two pages
    drop_pages(begin, page_bytes());
    CHECK(begin[page_bytes()] == 1);
    CHECK(begin[0] == 0 && begin[page_bytes() - 1] == 0); // a page that comes back is empty
    drop_pages(begin, n);
    free_pages(begin, n);
}

} // namespace

void test_pages() {
    for (const size_t page : { 4 * kib, 16 * kib, 64 * kib }) {
        for (const size_t n_bytes : { size_t(1), size_t(144), 4 * kib, 5 * kib, 20 * kib, 64 * kib, 100 * kib + 1 }) {
            test_parts_that_come_and_go(n_bytes, page);
            test_most_bytes(n_bytes, page);
        }
    }
    test_this_machine();
}
