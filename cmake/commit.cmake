# Writes OUTPUT, a header with the commit of SOURCE, and leaves it alone when nothing changed. Run at every build.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\ninline constexpr char kCommit[] = \"@commit@\";\n" @ONLY)
