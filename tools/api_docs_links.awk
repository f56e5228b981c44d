# A document for Doxygen: awk -v file=docs/cli.md -v all='README.md docs/cli.md ...' -f tools/api_docs_links.awk FILE
#
# Links to documents that are not among `all`, and to sources, become their text. Doxygen takes any
# README.md for the main page: those of folders are to be copied as overview.md.

BEGIN {
  n = split(all, names, " ")
  for (i = 1; i <= n; ++i) has_page[names[i]] = 1
  folder = file
  if (!sub(/[^\/]*$/, "", folder)) folder = ""
}

# docs/tutorial/../cli.md -> docs/cli.md
function plain(path) {
  while (sub(/[^\/.]+\/\.\.\//, "", path)) {}
  return path
}

function link(said,  at, target) {
  at = index(said, "](")
  target = substr(said, at + 2, length(said) - at - 2)
  if (target ~ /^https?:/) return said
  sub(/#.*/, "", target)
  if (!has_page[plain(folder target)]) return substr(said, 2, at - 2)
  if (plain(folder target) != "README.md") sub(/README\.md/, "overview.md", said)
  return said
}

/^```/ { in_code = !in_code }
{
  left = $0
  out = ""
  while (!in_code && match(left, /\[[^][]*\]\([^() ]*\)/)) {
    said = substr(left, RSTART, RLENGTH)
    is_image = RSTART > 1 && substr(left, RSTART - 1, 1) == "!"
    out = out substr(left, 1, RSTART - 1) (is_image ? said : link(said))
    left = substr(left, RSTART + RLENGTH)
  }
  print out left
}
