# What Doxygen is to read of one header: awk -v header=dtensor/layout/layout.h -f tools/api_docs.awk FILE
#
# Our comments are plain `//`. Those that stand before a declaration become `///`, those that end a
# line of one `///<`; the file's own comment is that of a group, named as the header is included, which
# has all that the header declares. `// --- Title. Text` begins a section of that group, or of a class.
# What stands in a namespace `internal` is left out, and so are comments inside of functions.
#
# Exits with 3 for a header all of which is internal, with 1 for one without a comment at its head.

{ line[NR] = $0 }

function is_comment(i) { return line[i] ~ /^ *\/\// }
function comment_text(i,  text) { text = line[i]; sub(/^ *\/\//, "", text); return text }
function indent_of(text) { match(text, /^ */); return RLENGTH }

# --- Text: what Doxygen and Markdown would take for theirs is escaped, but for `code`.

function escape(text) {
  gsub(/\\/, "\\\\", text)
  gsub(/&/, "\\&amp;", text)
  gsub(/</, "\\&lt;", text)
  gsub(/>/, "\\&gt;", text)
  gsub(/"/, "\\&quot;", text)
  gsub(/[@#%*$]/, "\\\\&", text)
  gsub(/--/, "\\--", text)
  gsub(/~~/, "\\~\\~", text)
  gsub(/\]\(/, "]\\(", text)
  return text
}

# `in_code` is kept from line to line of a comment.
function prose(text,  out, piece, n, i) {
  n = split(text, piece, "`")
  out = in_code ? piece[1] : escape(piece[1])
  for (i = 2; i <= n; ++i) {
    in_code = !in_code
    out = out "`" (in_code ? piece[i] : escape(piece[i]))
  }
  return out
}

function is_item(text) { return text ~ /^ *([-*]|[0-9]+\.) / }

# Does the drawing or program in text[i..] look like C++?
function looks_like_code(i, n) {
  for (; i <= n && (text[i] == "" || indent_of(text[i]) >= 3); ++i) {
    if (text[i] ~ /[;{] *(\/\/.*)?$/) return 1
  }
  return 0
}

# The comment lines text[1..n] as lines with `mark` before them. What is indented by three or more is
# code, or a list.
function block(mark, n,  out, i, state, j) {
  in_code = 0
  state = "prose"
  for (i = 1; i <= n; ++i) {
    if (text[i] == "") {
      for (j = i; j <= n && text[j] == ""; ++j) {}
      if (state == "code" && (j > n || indent_of(text[j]) < 3)) out = out mark " \\endcode\n"
      if (j > n || indent_of(text[j]) < 3) state = "prose"
      out = out mark "\n"
      continue
    }
    if (indent_of(text[i]) < 3) {
      if (state == "code") out = out mark " \\endcode\n"
      state = "prose"
    } else if (state == "prose") {
      state = is_item(text[i]) ? "list" : "code"
      if (state == "code") out = out mark "\n" mark " \\code{" (looks_like_code(i, n) ? ".cpp" : ".unparsed") "}\n"
      else out = out mark "\n"
    }
    if (state == "code") out = out mark text[i] "\n"
    else if (is_item(text[i])) out = out mark list_item(text[i]) "\n"
    else out = out mark prose(text[i]) "\n"
  }
  return state == "code" ? out mark " \\endcode\n" : out
}

function list_item(item) {
  match(item, /^ *([-*]|[0-9]+\.) /)
  return (item ~ /^ *[-*]/ ? substr(item, 1, RLENGTH - 2) "- " : substr(item, 1, RLENGTH)) \
      prose(substr(item, RLENGTH + 1))
}

function comment_block(mark, first, last,  i) {
  for (i = first; i <= last; ++i) text[i - first + 1] = comment_text(i)
  return block(mark, last - first + 1)
}

# --- Code.

# The column of the comment that ends a line of code; 0: none. Leaves the code alone in `code`.
function split_code(whole,  i, c, quote) {
  code = ""
  quote = ""
  for (i = 1; i <= length(whole); ++i) {
    c = substr(whole, i, 1)
    if (quote != "") {
      if (c == "\\") ++i
      else if (c == quote) quote = ""
      continue
    }
    if (c == "\"" || (c == "'" && substr(whole, i - 1, 1) !~ /[0-9a-fA-F]/)) { quote = c; continue }
    if (c == "/" && substr(whole, i, 2) == "//") return i
    code = code c
  }
  return 0
}

# Of what a brace opens: namespace, class, enum, or else (a function's body, an initial value).
function kind_of(statement) {
  gsub(/alignas\([^)]*\)|\[\[[^]]*\]\]/, "", statement)
  if (statement ~ /^ *extern *$/) return "namespace"
  if (statement ~ /(^|[ ])namespace([ ]|$)/) return statement ~ /internal *$/ ? "internal" : "namespace"
  sub(/^ *template *<.*> */, "", statement)
  if (statement ~ /\(/) return "else"
  if (statement ~ /^ *enum /) return "enum"
  return statement ~ /^ *(typedef )?(class|struct|union)( |$)/ ? "class" : "else"
}

# Follows the braces of one line's code.
function follow(code,  i, c) {
  for (i = 1; i <= length(code); ++i) {
    c = substr(code, i, 1)
    if (c == "{") {
      kind[++depth] = kind_of(statement)
      if (kind[depth] == "internal") hidden = hidden ? hidden : depth
      statement = ""
    } else if (c == "}") {
      if (section[depth]) close_section()
      if (hidden == depth) hidden = -1
      --depth
      statement = ""
    } else if (c == ";" || (c == "," && kind[depth] == "enum")) {
      statement = ""
    } else {
      statement = statement c
    }
  }
  sub(/^ *(public|private|protected) *: */, "", statement)
  statement = statement ~ /[^ ]/ ? statement " " : ""
}

function declares() { return depth == 0 || kind[depth] != "else" }

# The function that is declared from line i on; "" if it is none.
function function_name(i,  said, j) {
  for (j = i; j < i + 4 && j <= NR && said !~ /[;{]/; ++j) said = said " " line[j]
  gsub(/\/\/.*|template *<[^()]*>|\[\[[^]]*\]\]|DTENSOR_EXPORT/, "", said)
  return match(said, /[A-Za-z_0-9]+ *\(/) ? substr(said, RSTART, RLENGTH) : ""
}

function class_name(i,  said) {
  if (line[i] !~ /^ *(class|struct) [A-Za-z_0-9]+ *(final *)?([:{]|$)/) return ""
  said = line[i]
  sub(/^ *(class|struct) /, "", said)
  sub(/[^A-Za-z_0-9].*/, "", said)
  return said
}

function close_section() {
  print "/// @}\n"
  section[depth] = 0
}

# `// --- Title. Text`, in lines first..last; returns where the comment of the declaration below
# begins, which is the first line after a full stop that begins with a capital letter.
function open_section(first, last,  title, i, end, n) {
  end = last + 1
  if (line[last + 1] != "") {
    for (i = last; i > first; --i) {
      if (line[i - 1] ~ /[.:]$/ && comment_text(i) ~ /^ [A-Z]/) end = i
    }
  }
  title = comment_text(first)
  sub(/^ *--- */, "", title)
  n = 0
  if (match(title, /[.:] /)) {
    text[++n] = " " substr(title, RSTART + 2)
    title = substr(title, 1, RSTART - 1)
  }
  sub(/\.$/, "", title)
  for (i = first + 1; i < end; ++i) text[++n] = comment_text(i)
  if (section[depth]) close_section()
  section[depth] = 1
  in_code = 0
  printf "/// \\name %s\n%s/// @{\n\n", prose(title), block("///", n)
  return end
}

function is_documented(i) {
  return line[i] !~ /^ *(}|public:|private:|protected:|static_assert|namespace|#include|#if|#e|$)/ &&
      line[i] !~ /^ *(class|struct) [A-Za-z_0-9]+;/
}

# A comment that stands alone, in lines first..last.
function leading(first, last) {
  if (comment_text(first) ~ /^ *--- /) {
    first = open_section(first, last)
    if (first > last) return
  }
  if (line[last + 1] == "" && depth == 1 && !section[depth] && line[last + 2] !~ /^namespace /) {
    # Of no declaration: of the group, which is opened again, since none is in itself.
    printf "/// @}\n\n/// \\addtogroup %s\n%s/// @{\n\n", group, comment_block("///", first, last)
    return
  }
  if (!is_documented(last + 1)) return
  above = comment_block("///", first, last)
  above_name = function_name(last + 1)
  printf "%s", above
}

# A comment that ends line i, from that column on: it may go on below. Returns its last line.
function trailing(i, column,  mark, out) {
  mark = substr(line[i], 1, column - 1) "///<"
  in_code = 0
  out = mark prose(substr(line[i], column + 2))
  while (is_comment(i + 1) && index(line[i + 1], "//") == column) {
    ++i
    out = out "\n" sprintf("%" (column - 1) "s", "") "///<" prose(comment_text(i))
  }
  print out
  return i
}

# A class without a comment has that of the header, if it begins with the class's name.
function class_comment(i,  name) {
  if (line[i - 1] ~ /^ *template </) return
  name = class_name(line[i] ~ /^ *template <.*> *$/ ? i + 1 : i)
  if (name == "" || line[i] ~ /;/ || (depth > 0 && kind[depth] != "namespace")) return
  if (index(comment_text(1), " " name ":") == 1) printf "%s", comment_block("///", 1, heading)
  else printf "/// See the text of \\ref %s \"%s\".\n", group, header
}

function code_line(i,  column) {
  if (line[i] == "" || is_comment(i - 1)) {
    if (line[i] == "") above_name = ""
  } else if (above_name != "" && statement == "" && declares() && function_name(i) == above_name) {
    printf "%s", above  # an overload
  }
  if (statement == "" && !(is_comment(i - 1) && i - 1 > heading)) class_comment(i)
  if (section[depth] && kind[depth] == "class" && line[i] ~ /^ *(private|protected):/) close_section()
  column = split_code(line[i])
  if (column && declares() && is_documented(i) && code !~ /{ *$/) {
    follow(code)
    return trailing(i, column)
  }
  was_hidden = hidden
  out = line[i]
  gsub(/DTENSOR_EXPORT /, "", out)
  if (depth == 1 && line[i] ~ /^}.*namespace dtensor$/) print "/// @}"
  follow(code)
  if (!was_hidden && !hidden) {
    print out
    if (depth > 0 && line[i] != "" && is_documented(i)) ++shown
  }
  if (hidden == -1) hidden = 0
  if (line[i] ~ namespace_line) printf "/// \\addtogroup %s\n/// @{\n\n", group
  return i
}

END {
  namespace_line = "^namespace DTENSOR_EXPORT dtensor {$"
  for (i = 1; i <= NR; ++i) in_namespace = in_namespace || line[i] ~ namespace_line
  group = header
  gsub(/[^A-Za-z0-9]/, "_", group)
  room = header
  sub(/\/[^\/]*$/, "", room)
  gsub(/[^A-Za-z0-9]/, "_", room)
  for (heading = 0; is_comment(heading + 1); ++heading) {}
  if (heading == 0) { print header ": no comment at its head" >"/dev/stderr"; exit 1 }
  printf "//! \\defgroup %s %s\n//! \\ingroup room_%s\n//!\n%s\n", group, header, room, comment_block("//!", 1, heading)
  if (!in_namespace) printf "/// \\addtogroup %s\n/// @{\n\n", group
  for (i = heading + 1; i <= NR; ++i) {
    if (line[i] ~ /^#/) {  # with what belongs to it
      print line[i]
      while (line[i] ~ /\\$/) print line[++i]
    } else if (is_comment(i)) {
      for (last = i; is_comment(last + 1); ++last) {}
      if (!hidden && declares() && statement == "") leading(i, last)
      i = last
    } else {
      i = code_line(i)
    }
  }
  if (!in_namespace) print "/// @}"
  if (in_namespace && !shown) exit 3
}
