# cmake -DINPUT=FILE -DOUTPUT=FILE.cpp -DNAME=symbol -P embed.cmake: a file's bytes as a string in the program.
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," values "${hex}")
file(WRITE "${OUTPUT}" "#include <cstddef>\n\nnamespace quatrain {\n"
  "extern const unsigned char ${NAME}[];\nextern const std::size_t ${NAME}_size;\n"
  "const unsigned char ${NAME}[] = {\n${values}};\nconst std::size_t ${NAME}_size = sizeof ${NAME};\n}\n")
