// Whole files of text.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace keel {

// Throws Error where there is no such file, it cannot be read or it is a folder.
std::string read_text_file(const std::filesystem::path& path);

// Whenever the program or the machine stops, a reader finds the file that was there before or this one, whole; a file that was
// there keeps its mode. A link, a pipe or a device is written as it is. Throws Error saying why it cannot be written.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// All of `text` to an open descriptor. Throws Error naming `path`.
void write_all(int file, const std::filesystem::path& path, std::string_view text);

// A name that was made or renamed in the file's folder outlasts the machine's stop. Throws Error naming `path`.
void sync_folder_of(const std::filesystem::path& path);

}  // namespace keel
