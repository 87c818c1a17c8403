# Writes OUTPUT, a source file with the commit of SOURCE, and leaves it alone when nothing changed. Run at every build.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "namespace keel {\nextern const char* const kCommit;\nconst char* const kCommit = \"@commit@\";\n}\n" @ONLY)
